"""From logits to results on the device against the same on the CPU: every recipe, any rows.

No model runs: logits are drawn. What differs between the two is histories and penalties, the
arg-max, bans, the finish mask, and how results leave the device.
"""

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from executor_svc.choosing import Chooser
from executor_svc.recipe import Told, choose_recipe
from executor_svc.slots import Lanes, Slot
from svc_wire.capacity import Capacity
from svc_wire.frames import BatchPlan, PlanFrame, StepLogprobs
from svc_wire.ids import LOGPROBS_MAX, RowFlag
from tests.support.plans import RowSpec, fill_plan, plan_buffer

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")

CAPACITY = Capacity(
    num_blocks=200, block_size=4, rows_max=6, tokens_max=1600, lanes=8, model_len_max=1500,
    vocab_size=5000,
)  # fmt: skip
BUCKET = 6

Outcome = tuple[list[int], list[int], StepLogprobs | None]


class OnDevice:
    """The tail of a step as the compute stream runs it."""

    def __init__(self, device: torch.device) -> None:
        from executor_svc.cuda.choosing import Choosing
        from executor_svc.cuda.device_slot import DeviceSlot
        from executor_svc.penalties import Histories

        self._slot = DeviceSlot(CAPACITY, device)
        self._lanes = Lanes(CAPACITY.lanes, device)
        self.histories = Histories(CAPACITY.lanes, CAPACITY.vocab_size, device)
        self._choosing = Choosing(torch.empty(0), [self._slot], self._lanes, self.histories)
        self._scrap = CAPACITY.num_blocks * CAPACITY.block_size

    def run(self, plan: BatchPlan, logits: Tensor) -> Outcome:
        from executor_svc.cuda.device_slot import read_logprobs
        from executor_svc.cuda.step_kernels import resolve_carry_over

        recipe = choose_recipe(plan)
        self._slot.plan_bytes[: len(plan.raw)] = torch.from_numpy(plan.raw.copy())
        # Rows of the carry-over are padded in decode steps only, those of the choice always.
        rows = BUCKET if plan.is_decode else plan.rows
        resolve_carry_over(self._slot, self._lanes, rows, self._scrap, CAPACITY.block_size)
        padded = torch.randn(BUCKET, CAPACITY.vocab_size, dtype=logits.dtype)
        padded[: plan.rows] = logits
        self._choosing.logits = padded.to(self._slot.result.device)
        self._choosing.enqueue(0, BUCKET, recipe)
        lines = self._slot.told[recipe.told].cpu().numpy()[:, : plan.rows].copy()
        return lines[0].tolist(), lines[1].tolist(), read_logprobs(lines)


class OnCpu:
    """The same, by the runner for the CPU."""

    def __init__(self) -> None:
        cpu = torch.device("cpu")
        self._slot = Slot(CAPACITY, cpu)
        self._lanes = Lanes(CAPACITY.lanes, cpu)
        self.chooser = Chooser(CAPACITY, cpu)

    def run(self, plan: BatchPlan, logits: Tensor) -> Outcome:
        slot, rows = self._slot, plan.rows
        slot.plan_bytes.numpy()[: len(plan.raw)] = plan.raw
        lanes, token_ids = slot.row_lane[:rows].long(), slot.token_ids[: plan.tokens]
        last = slot.query_indptr[1 : rows + 1].long() - 1
        masked = self._lanes.carry_over(lanes, slot.row_flags[:rows], last, token_ids)
        self.chooser.remember(plan, token_ids)
        samples = torch.from_numpy(np.flatnonzero(plan.row_flags & RowFlag.SAMPLES))
        sampled, logprobs = self.chooser.choose(plan, slot, samples, logits[samples].clone())
        status, token = self._lanes.settle(lanes, samples, masked, sampled)
        return token.tolist(), status.tolist(), logprobs


def draw_plan(rng: random.Random, step: int) -> BatchPlan:
    """Rows that begin or go on, with tokens that repeat; any wishes, in some plans none."""
    frame = PlanFrame(plan_buffer(CAPACITY), CAPACITY, writable=True)
    forbidden = rng.choice([0, RowFlag.PENALISED, RowFlag.BAN_STOP])
    rows: list[RowSpec] = []
    for lane in rng.sample(range(CAPACITY.lanes), rng.randint(1, CAPACITY.rows_max)):
        start = rng.choice([0, 0, 7])
        stop = start + rng.choice([1, 1, 1, 3, 600][: 5 if len(rows) < 2 else 4])
        rows.append(RowSpec(lane, start, stop, rng.randrange(16) & ~forbidden))
    fill_plan(frame, rows, rng, epoch=1, step=step)
    count, tokens = len(rows), int(frame.query_indptr[len(rows)])
    frame.token_ids[:tokens] = [rng.randrange(60) for _ in range(tokens)]
    frame.prompt_len[:count] = [rng.choice([1, 3, 9, 300]) for _ in rows]
    frame.stop_ids[:count] = rng.choice([-1, 5])
    frame.stop_ids[:count, :3] = [[rng.randrange(60) for _ in range(3)] for _ in rows]
    frame.logprobs[:count] = [rng.choice([[0], [0, 1], [0, 1, 5]][step % 3]) for _ in rows]
    if rng.random() < 0.5:
        frame.temperature[:count] = 0
    elif rng.random() < 0.5:
        frame.top_k[:count], frame.top_p[:count] = 0, 1
    frame.seal(
        epoch=1, step=step, rows=count, tokens=tokens, blocks=int(frame.block_indptr[count]),
        samples=sum(bool(row.flags & RowFlag.SAMPLES) for row in rows),
    )  # fmt: skip
    return frame.read(epoch=1, step=step)


def draw_logits(rng: random.Random, rows: int, dtype: torch.dtype) -> Tensor:
    """The first 60 tokens, of which histories consist, are likely."""
    generator = torch.Generator().manual_seed(rng.getrandbits(60))
    logits = torch.randn(rows, CAPACITY.vocab_size, generator=generator) * 2
    logits[:, :60] += 6
    if rng.random() < 0.2:
        logits[rng.randrange(rows), rng.randrange(60)] = rng.choice([torch.nan, torch.inf])
    return logits.to(dtype)


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("seed", range(4))
def test_results_are_those_of_the_cpu(device: torch.device, seed: int, dtype: torch.dtype) -> None:
    rng, on_device, on_cpu = random.Random(seed), OnDevice(device), OnCpu()
    seen = set()
    for step in range(1, 40):
        plan = draw_plan(rng, step)
        logits = draw_logits(rng, plan.rows, dtype)
        token, status, logprobs = on_device.run(plan, logits)
        expected_token, expected_status, expected = on_cpu.run(plan, logits)
        assert (token, status) == (expected_token, expected_status)
        samples = (plan.row_flags & RowFlag.SAMPLES != 0) & (np.array(token) >= 0)
        _compare(logprobs, expected, samples)
        seen.add(choose_recipe(plan))
        cells = on_device.histories.cells.cpu()
        assert torch.equal(cells, on_cpu.chooser._histories.cells)
    assert {recipe.told for recipe in seen} == set(Told)
    assert {recipe.penalises for recipe in seen} == {False, True}


def _compare(found: StepLogprobs | None, expected: StepLogprobs | None, rows: Any) -> None:
    assert (found is None) == (expected is None)
    if found is None or expected is None:
        return
    assert found.top.shape[1] == expected.top.shape[1]
    assert found.top.shape[1] in (0, LOGPROBS_MAX)
    np.testing.assert_allclose(found.chosen[rows], expected.chosen[rows], atol=1e-4)
    np.testing.assert_allclose(found.top[rows], expected.top[rows], atol=1e-4)
    for ids, other in zip(found.top_ids[rows], expected.top_ids[rows], strict=True):
        assert len(set(ids.tolist()) ^ set(other.tolist())) <= 4, "equal ones may change places"
