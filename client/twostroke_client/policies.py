"""The scheduling policy as values: the only module that knows the fields of admin.proto."""

from dataclasses import dataclass

from twostroke.v1 import admin_pb2 as pb


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


def state_from(state: pb.PolicyState) -> PolicyState:
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
