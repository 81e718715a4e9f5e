"""The policy in force, for those who ask about it or ask for another one."""

import structlog

from scheduler_svc.core import PolicyFault, Scheduler
from scheduler_svc.core.policies import OptionError
from scheduler_svc.policy_finder import PolicyNotFound, make_in_time, names
from svc_wire.frontend_link import AskPolicy, PolicyInForce, TenantUsage

log = structlog.get_logger(service="scheduler")


class PolicyDesk:
    """Answers AskPolicy, and logs what goes wrong with a policy."""

    def __init__(self, core: Scheduler) -> None:
        self._core = core
        self._faults = 0
        """That were logged."""

    def answer(self, ask: AskPolicy) -> PolicyInForce:
        """Puts another policy in force, if one is asked for, and tells which one is."""
        error = self._change(ask) if ask.name else ""
        stats = self._core.stats()
        return PolicyInForce(
            ticket=ask.ticket,
            error=error,
            name=self._core.policy_name,
            available=tuple(names()),
            faults=stats.policy_faults,
            last_fault=self._core.policy_fault,
            reliefs=stats.reliefs,
            tenants=tuple(
                TenantUsage(
                    tenant,
                    usage.requests,
                    usage.prompt_tokens,
                    usage.cached_tokens,
                    usage.output_tokens,
                    usage.preemptions,
                )
                for tenant, usage in self._core.tenants().items()
            ),
        )

    def _change(self, ask: AskPolicy) -> str:
        """Why the policy was not changed; empty if it was."""
        question = self._core.question
        before_s = question.took_s
        try:
            # Only what is installed under a name: this must not import whatever a caller says.
            policy = make_in_time(question, ask.name, ask.options, allow_module=False)
            self._core.set_policy(policy)
        except (PolicyNotFound, OptionError, PolicyFault) as refused:
            question.took_s = before_s  # the policy in force has not taken it
            log.warning("policy not changed", asked=ask.name, error=str(refused))
            return str(refused)
        log.info("policy changed", policy=self._core.policy_name, options=ask.options)
        return ""

    def tell_faults(self) -> None:
        """Logs that a policy was replaced, once each."""
        faults = self._core.stats().policy_faults
        if faults != self._faults:
            self._faults = faults
            log.error(
                "policy replaced",
                by=self._core.policy_name,
                reason=self._core.policy_fault,
                faults=faults,
            )
