"""AdminService: the scheduler's policy, looked at and changed."""

import ipaddress

from frontend_svc import errors
from frontend_svc.backend import Backend
from frontend_svc.boundary import Context
from frontend_svc.errors import Violation
from svc_wire.frontend_link import PolicyInForce
from twostroke.v1 import admin_pb2 as pb
from twostroke.v1.admin_pb2_grpc import AdminServiceServicer

NAME = pb.DESCRIPTOR.services_by_name["AdminService"].full_name


class AdminService(AdminServiceServicer):
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def GetPolicy(
        self, request: pb.GetPolicyRequest, context: Context
    ) -> pb.GetPolicyResponse:
        return pb.GetPolicyResponse(state=_state(await self._backend.ask_policy("", {})))

    async def SetPolicy(
        self, request: pb.SetPolicyRequest, context: Context
    ) -> pb.SetPolicyResponse:
        if not request.name:
            raise errors.invalid([Violation("name", "must not be empty")])
        answer = await self._backend.ask_policy(request.name, dict(request.options))
        if answer.error:
            raise errors.invalid([Violation("name", answer.error)])
        return pb.SetPolicyResponse(state=_state(answer))


def _state(policy: PolicyInForce) -> pb.PolicyState:
    return pb.PolicyState(
        name=policy.name,
        available=policy.available,
        faults=policy.faults,
        last_fault=policy.last_fault,
        reliefs=policy.reliefs,
        tenants=[
            pb.TenantUsage(
                tenant=usage.tenant,
                requests=usage.requests,
                prompt_tokens=usage.prompt_tokens,
                cached_tokens=usage.cached_tokens,
                output_tokens=usage.output_tokens,
                preemptions=usage.preemptions,
            )
            for usage in policy.tenants
        ],
    )


def is_private(host: str) -> bool:
    """Whether only this machine reaches `host`: a loopback address, or a UNIX socket."""
    if host == "localhost" or host.startswith("unix:"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
