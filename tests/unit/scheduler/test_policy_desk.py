"""What a caller gets who asks for a policy."""

from scheduler_svc.policy_desk import PolicyDesk
from svc_wire.frontend_link import AskPolicy
from tests.support.core import scheduler


def test_a_policy_that_is_installed_is_put_in_force() -> None:
    told = PolicyDesk(scheduler()).answer(AskPolicy(1, "fair", {}))
    assert (told.name, told.ticket, told.error) == ("fair", 1, "")


def test_a_caller_cannot_have_a_module_imported() -> None:
    told = PolicyDesk(scheduler()).answer(AskPolicy(1, "scheduler_svc.core.policies:Fair", {}))
    assert (told.name, told.ticket) == ("fcfs", 1)
    assert "no policy" in told.error
