"""How the pace of the executor is measured, and what follows for pieces of prompts."""

import pytest

from scheduler_svc.core.pace import PIECE_MIN, Pace
from svc_wire.frames import StepTiming
from svc_wire.ids import NO_TOKEN, RowStatus
from tests.support.core import plan, request, result, scheduler


def timing(took_ms: float) -> StepTiming:
    return StepTiming(compute_begin_ns=5, compute_end_ns=5 + int(took_ms * 1e6))


def test_nothing_is_known_before_a_step_was_seen() -> None:
    pace = Pace()
    assert (pace.step_s, pace.prompt_token_s) == (0.0, 0.0)
    assert pace.piece_tokens(1.0) == PIECE_MIN


def test_a_step_that_reads_prompts_tells_nothing_before_one_that_does_not() -> None:
    pace = Pace()
    pace.observe(timing(50), rows=1, tokens=100)
    assert pace.prompt_token_s == 0.0


def test_the_cost_of_a_prompt_token_is_what_a_step_takes_beyond_decoding() -> None:
    pace = Pace()
    pace.observe(timing(10), rows=4, tokens=4)
    pace.observe(timing(30), rows=4, tokens=104)
    assert pace.step_s == pytest.approx(0.01)
    assert pace.prompt_token_s == pytest.approx(0.0002)
    assert pace.piece_tokens(0.05) == 200
    assert pace.piece_tokens(0.0) == PIECE_MIN


def test_the_averages_follow_slowly() -> None:
    pace = Pace()
    pace.observe(timing(10), rows=1, tokens=1)
    pace.observe(timing(20), rows=1, tokens=1)
    assert pace.step_s == pytest.approx(0.011)


def test_a_token_costs_more_at_once_and_less_slowly() -> None:
    pace = Pace()
    pace.observe(timing(10), rows=1, tokens=1)
    for took_ms, token_us in ((11, 10), (30, 200), (11, 181)):
        pace.observe(timing(took_ms), rows=1, tokens=101)
        assert pace.prompt_token_s * 1e6 == pytest.approx(token_us)


def test_a_piece_is_at_most_twice_the_largest_of_late() -> None:
    pace = Pace()
    pace.observe(timing(10), rows=1, tokens=1)
    pace.observe(timing(10.1), rows=1, tokens=101)
    assert pace.piece_tokens(10.0) == 200
    pace.observe(timing(10.1), rows=1, tokens=51)
    assert pace.piece_tokens(10.0) == 190


def test_a_step_without_timing_tells_nothing() -> None:
    pace = Pace()
    pace.observe(StepTiming(), rows=1, tokens=1)
    assert pace.step_s == 0.0


def test_prompts_are_cut_so_that_decoding_keeps_its_time() -> None:
    core = scheduler(step_tokens_max=64, itl_target_ms=5.0)
    core.add(request(prompt_len=1, max_tokens=20))
    plan(core)
    core.commit(result(1, (RowStatus.OK, 5)))
    core.add(request(prompt_len=36, max_tokens=1))
    planned = plan(core)
    assert planned
    core.commit(result(2, (RowStatus.OK, 5), (RowStatus.OK, NO_TOKEN)))
    batch = core._roster.batch
    assert batch
    assert batch.table.planned[batch.lanes].tolist() == [2, PIECE_MIN]
