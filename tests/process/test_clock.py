"""The machine's time is set while everything runs: nothing that is waited for notices."""

from pathlib import Path

import pytest

from tests.chaos.clock import jumping_clock
from tests.support.crowd import Crowd
from tests.support.serve import Serve, wait_until
from twostroke_client import Client

pytestmark = pytest.mark.process

HASH_VOCAB = 257
YEAR_S = 365 * 24 * 3600


def goes_on(client: Client) -> bool:
    """Whether tokens come, and requests are taken."""
    seen = client.server_status().output_tokens
    return (
        wait_until(lambda: client.server_status().output_tokens > seen + 300, 20)
        and client.server_status().ready
    )


def test_a_clock_that_jumps_is_nobodys_death(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TWOSTROKE_STEP_MS", "10")
    with jumping_clock(tmp_path) as clock:
        if clock is None:
            pytest.skip("there is no C compiler")
        with Serve("--hang-timeout", "5") as serve, Client(serve.address) as client:
            before = {role: service.pid for role, service in serve.services.items()}
            with Crowd(serve.address, 8, seed=4, vocab_size=HASH_VOCAB):
                for offset_s in (60, -60, YEAR_S, -YEAR_S, 0):
                    clock.jump_to(offset_s)
                    assert goes_on(client)
            assert {role: found.pid for role, found in serve.find_services().items()} == before
            assert "lost" not in serve.errors()
