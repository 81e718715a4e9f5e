"""The scheduling policy, as values and calls: the only module that knows admin.proto's fields."""

from collections.abc import Mapping
from dataclasses import dataclass

import grpc

from twostroke.v1 import admin_pb2 as pb
from twostroke.v1.admin_pb2_grpc import AdminServiceStub
from twostroke_client.channel import INFO_TIMEOUT_S
from twostroke_client.errors import typed_errors


@dataclass(frozen=True, slots=True)
class TenantUsage:
    """Sums of one tenant since the scheduler's start."""

    tenant: str
    """Empty for requests that name none."""
    requests: int
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens that the prefix cache spared."""
    output_tokens: int
    preemptions: int


@dataclass(frozen=True, slots=True)
class PolicyState:
    """A policy at work."""

    name: str
    available: tuple[str, ...]
    faults: int
    """Policies that were replaced by fcfs, as an answer of theirs could not be used."""
    last_fault: str
    reliefs: int
    """Requests that were overtaken too often and went before everybody."""
    tenants: tuple[TenantUsage, ...]


def get_policy(channel: grpc.Channel, timeout_s: float = INFO_TIMEOUT_S) -> PolicyState:
    with typed_errors():
        answer = AdminServiceStub(channel).GetPolicy(pb.GetPolicyRequest(), timeout=timeout_s)
    return _state_from(answer.state)


def set_policy(
    channel: grpc.Channel,
    name: str,
    options: Mapping[str, str],
    timeout_s: float = INFO_TIMEOUT_S,
) -> PolicyState:
    request = pb.SetPolicyRequest(name=name, options=options)
    with typed_errors():
        answer = AdminServiceStub(channel).SetPolicy(request, timeout=timeout_s)
    return _state_from(answer.state)


def _state_from(state: pb.PolicyState) -> PolicyState:
    return PolicyState(
        name=state.name,
        available=tuple(state.available),
        faults=state.faults,
        last_fault=state.last_fault,
        reliefs=state.reliefs,
        tenants=tuple(
            TenantUsage(**{name: getattr(usage, name) for name in TenantUsage.__annotations__})
            for usage in state.tenants
        ),
    )
