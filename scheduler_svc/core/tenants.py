"""What each tenant asked for, got, and was spared by the prefix cache."""

from collections import OrderedDict
from dataclasses import dataclass

TENANTS_MAX = 1000
"""More are not kept: whoever was heard of longest ago goes."""


@dataclass(slots=True)
class TenantUsage:
    """Sums since the scheduler's start, or since the tenant was last forgotten."""

    requests: int = 0
    """Admitted at least once."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that the prefix cache spared."""
    output_tokens: int = 0
    """Of requests that have ended."""
    preemptions: int = 0
    """Of requests that have ended."""


class Tenants:
    """Usage by tenant."""

    def __init__(self) -> None:
        self._usage: OrderedDict[str, TenantUsage] = OrderedDict()

    def admitted(self, tenant: str, prompt_tokens: int, cached_tokens: int) -> None:
        usage = self._of(tenant)
        usage.requests += 1
        usage.prompt_tokens += prompt_tokens
        usage.cached_tokens += cached_tokens

    def ended(self, tenant: str, output_tokens: int, preemptions: int) -> None:
        usage = self._of(tenant)
        usage.output_tokens += output_tokens
        usage.preemptions += preemptions

    def all(self) -> dict[str, TenantUsage]:
        return dict(self._usage)

    def _of(self, tenant: str) -> TenantUsage:
        usage = self._usage.setdefault(tenant, TenantUsage())
        self._usage.move_to_end(tenant)
        if len(self._usage) > TENANTS_MAX:
            self._usage.popitem(last=False)
        return usage
