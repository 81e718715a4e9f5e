"""Usage by tenant is kept for so many, and no more."""

import pytest

from scheduler_svc.core.tenants import Tenants


def test_whoever_was_heard_of_longest_ago_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler_svc.core.tenants.TENANTS_MAX", 2)
    tenants = Tenants()
    for tenant in ("a", "b", "a", "c"):
        tenants.admitted(tenant, 5, 0)
    assert list(tenants.all()) == ["a", "c"]
    assert tenants.all()["a"].prompt_tokens == 10


def test_what_is_handed_out_is_a_view_of_its_own() -> None:
    tenants = Tenants()
    tenants.ended("a", 3, 1)
    tenants.all().clear()
    assert (tenants.all()["a"].output_tokens, tenants.all()["a"].preemptions) == (3, 1)
