"""The sampler: filters against a plain reference, distributions, and rows that mind their own."""

import math
import random
from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from executor_svc.sampler import (
    Path,
    SamplingRows,
    _lowest_kept,
    choose_path,
    gumbel_noise,
    sample,
)
from svc_wire.frames import PlanFrame
from svc_wire.ids import NO_TOKEN, STOP_IDS_MAX, RowFlag, RowStatus
from tests.support.plans import SMALL, RowSpec, fill_plan, plan_buffer

pytestmark = pytest.mark.model

VOCAB = 300


def make_rows(count: int, **asked: list[float] | list[int] | list[bool] | float) -> SamplingRows:
    """Rows with defaults (greedy, no filter); `asked` gives a value for all or a list."""

    def column(name: str, default: float, dtype: torch.dtype) -> Tensor:
        value = asked.get(name, default)
        values = value if isinstance(value, list) else [value] * count
        return torch.tensor(values, dtype=dtype)

    return SamplingRows(
        temperature=column("temperature", 0.0, torch.float32),
        top_k=column("top_k", 0, torch.int32),
        top_p=column("top_p", 1.0, torch.float32),
        min_p=column("min_p", 0.0, torch.float32),
        seed=column("seed", 0, torch.int64),
        position=column("position", 7, torch.int32),
        stop_ids=torch.full((count, STOP_IDS_MAX), NO_TOKEN, dtype=torch.int32),
        ban_stop=column("ban_stop", 0, torch.bool),
    )


def with_stops(rows: SamplingRows, stops: list[list[int]]) -> SamplingRows:
    padded = [[*s, *[NO_TOKEN] * (STOP_IDS_MAX - len(s))] for s in stops]
    return replace(rows, stop_ids=torch.tensor(padded, dtype=torch.int32))


def part(rows: SamplingRows, index: list[int]) -> SamplingRows:
    return SamplingRows(**{f.name: getattr(rows, f.name)[index] for f in fields(rows)})


def reference_survivors(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> dict[int, float]:
    """Token -> probability after the filters, in plain Python."""
    best = max(logits)
    weight = {i: math.exp((x - best) / temperature) for i, x in enumerate(logits)}
    order = sorted(weight, key=lambda i: -weight[i])
    if top_k:
        order = order[:top_k]
    total, kept, reached = sum(weight[i] for i in order), list[int](), 0.0
    for i in order:
        if kept and reached >= top_p:
            break
        kept.append(i)
        reached += weight[i] / total
    kept = [i for i in kept if weight[i] >= min_p]
    total = sum(weight[i] for i in kept)
    return {i: weight[i] / total for i in kept}


def draw_many(logits: Tensor, count: int, path: Path, **asked: float) -> list[int]:
    """`count` draws from the same logits, one for each position."""
    rows = make_rows(count, **asked)
    rows = replace(rows, position=torch.arange(count, dtype=torch.int32))
    return sample(logits.repeat(count, 1), rows, path).token.tolist()


def test_greedy_takes_the_first_of_the_largest() -> None:
    logits = torch.tensor([[1.0, 5.0, 5.0, 0.0], [-3.0, -2.0, -9.0, -2.0]])
    for path in Path:
        sampled = sample(logits.clone(), make_rows(2), path)
        assert sampled.token.tolist() == [1, 1]
        assert sampled.status.tolist() == [RowStatus.OK] * 2


@pytest.mark.parametrize(("top_p", "kept"), [(0.49, 1), (0.5, 1), (0.51, 2), (0.75, 2), (0.76, 3)])
def test_top_p_keeps_the_fewest_that_reach_it(top_p: float, kept: int) -> None:
    logits = torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log()
    drawn = draw_many(logits, 500, Path.FILTERED, temperature=1.0, top_p=top_p)
    assert set(drawn) == set(range(kept)) | ({3} if kept == 3 else set())


@pytest.mark.parametrize("seed", range(6))
def test_filters_keep_what_the_reference_keeps(seed: int) -> None:
    rng = random.Random(seed)
    logits = [rng.gauss(0, 2) for _ in range(40)]
    asked = {
        "temperature": rng.choice([0.5, 1.0, 1.7]),
        "top_k": rng.choice([0, 1, 6, 25, 1000]),
        "top_p": rng.choice([1.0, 0.9, 0.5, 0.0]),
        "min_p": rng.choice([0.0, 0.05, 0.3, 1.0]),
    }
    expected = reference_survivors(logits, **asked)  # type: ignore[arg-type]
    drawn = draw_many(torch.tensor([logits]), 4000, Path.FILTERED, **asked)
    assert set(drawn) <= set(expected)
    likely = {token for token, share in expected.items() if share > 0.005}
    assert likely <= set(drawn)


def test_top_p_of_one_keeps_the_least_likely_token() -> None:
    scaled = torch.tensor([[0.0, -20.0, -40.0]])  # the first alone rounds to a probability of 1
    lowest = _lowest_kept(scaled, torch.tensor([0]), torch.tensor([1.0]))
    assert lowest.item() == -40.0


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (Path.NOISE, {"temperature": 1.0}),
        (Path.NOISE, {"temperature": 2.5, "min_p": 0.1}),
        (Path.FILTERED, {"temperature": 0.7, "top_k": 12, "top_p": 0.95}),
    ],
)
def test_draws_follow_the_distribution(path: Path, asked: dict[str, float]) -> None:
    rng = random.Random(3)
    logits = [rng.gauss(0, 1.5) for _ in range(30)]
    expected = reference_survivors(
        logits,
        asked["temperature"],
        int(asked.get("top_k", 0)),
        asked.get("top_p", 1.0),
        asked.get("min_p", 0.0),
    )
    count = 40_000
    drawn = draw_many(torch.tensor([logits]), count, path, seed=11, **asked)
    observed = np.bincount(drawn, minlength=len(logits))
    chi2 = sum((observed[i] - count * p) ** 2 / (count * p) for i, p in expected.items())
    # 99.99 % of honest samplers stay below this (Wilson and Hilferty's approximation).
    freedom = len(expected) - 1
    limit = freedom * (1 - 2 / (9 * freedom) + 3.72 * math.sqrt(2 / (9 * freedom))) ** 3
    assert chi2 < limit
    assert observed.sum() == sum(observed[i] for i in expected)


def test_seed_and_position_are_independent_streams() -> None:
    logits = torch.zeros(1, VOCAB)
    by_position = draw_many(logits, 2000, Path.NOISE, temperature=1.0, seed=5)
    rows = make_rows(2000, temperature=1.0)
    rows = replace(rows, seed=torch.arange(2000) * 2**33)
    by_seed = sample(logits.repeat(2000, 1), rows, Path.NOISE).token.tolist()
    for drawn in (by_position, by_seed):
        counts = np.bincount(drawn, minlength=VOCAB)
        assert counts.max() < 25  # the mean is 6.7
        pairs = np.corrcoef(drawn[:-1], drawn[1:])[0, 1]
        assert abs(pairs) < 0.1
    assert np.mean(np.array(by_position) == np.array(by_seed)) < 0.02


def test_noise_is_gumbel_noise() -> None:
    noise = gumbel_noise(torch.arange(64), torch.arange(64, dtype=torch.int32), 5000).flatten()
    assert bool(torch.isfinite(noise).all())
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.01)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.03)


def test_the_noise_never_changes() -> None:
    """The promise that a seed gives the same tokens after an update of this program."""
    noise = gumbel_noise(torch.tensor([12345, -1]), torch.tensor([0, 99], dtype=torch.int32), 3)
    expected = [
        [0.7664275765419006, 1.8900293111801147, -0.3265013098716736],
        [2.685497760772705, 3.054297924041748, 0.15332259237766266],
    ]
    torch.testing.assert_close(noise, torch.tensor(expected), rtol=0, atol=1e-5)


def _mixed_rows(count: int) -> tuple[Tensor, SamplingRows]:
    rng = random.Random(1)

    def column(choose: Callable[[], float]) -> list[float]:
        return [choose() for _ in range(count)]

    rows = make_rows(
        count,
        temperature=column(lambda: rng.choice([0.0, 0.3, 1.0, 2.0])),
        top_k=[int(x) for x in column(lambda: rng.choice([0, 1, 5, 200]))],
        top_p=column(lambda: rng.choice([1.0, 0.9, 0.2])),
        min_p=column(lambda: rng.choice([0.0, 0.2])),
        seed=[rng.randrange(-(2**63), 2**63) for _ in range(count)],
        position=[rng.randrange(9000) for _ in range(count)],
        ban_stop=[rng.random() < 0.5 for _ in range(count)],
    )
    rows = with_stops(rows, [rng.sample(range(VOCAB), rng.randint(0, 8)) for _ in range(count)])
    return torch.randn(count, VOCAB, generator=torch.Generator().manual_seed(2)) * 3, rows


def test_a_row_does_not_depend_on_its_batch() -> None:
    logits, rows = _mixed_rows(64)
    together = sample(logits.clone(), rows, Path.FILTERED)
    order = random.Random(0).sample(range(64), 64)
    shuffled = sample(logits[order].clone(), part(rows, order), Path.FILTERED)
    assert shuffled.token.tolist() == together.token[order].tolist()
    for i in range(64):
        alone = sample(logits[i : i + 1].clone(), part(rows, [i]), Path.FILTERED)
        assert (alone.token[0], alone.status[0]) == (together.token[i], together.status[i])


def test_every_path_that_serves_a_row_gives_it_the_same_token() -> None:
    logits, rows = _mixed_rows(64)
    filtered = sample(logits.clone(), rows, Path.FILTERED).token
    unfiltered = ((rows.top_k == 0) & (rows.top_p == 1)).tolist()
    greedy = (rows.temperature == 0).tolist()
    noise = sample(logits.clone(), rows, Path.NOISE).token
    plain = sample(logits.clone(), rows, Path.GREEDY).token
    assert filtered[unfiltered].tolist() == noise[unfiltered].tolist()
    assert filtered[greedy].tolist() == noise[greedy].tolist() == plain[greedy].tolist()
    assert any(unfiltered)
    assert any(greedy)


@pytest.mark.parametrize("path", list(Path))
def test_stop_ids_stop_or_are_banned(path: Path) -> None:
    logits = torch.zeros(4, 10)
    logits[:, 0] = 9.0
    logits[:, 3] = 5.0
    logits[:, 4] = 1.0
    rows = make_rows(4, ban_stop=[False, True, True, True], temperature=0.01)
    rows = with_stops(rows, [[3, 0], [0], [3, 0], []])
    sampled = sample(logits, rows, path)
    assert sampled.token.tolist() == [0, 3, 4, 0]
    ok, stopped = RowStatus.OK, RowStatus.STOPPED
    assert sampled.status.tolist() == [stopped, ok, ok, ok]


@pytest.mark.parametrize("path", list(Path))
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_an_error_of_their_row(path: Path, poison: float) -> None:
    logits, rows = _mixed_rows(6)
    clean = sample(logits.clone(), rows, path)
    logits[2, 17] = poison
    logits[4] = float("-inf")
    sampled = sample(logits, rows, path)
    bad = [False, False, True, False, True, False]
    for i, is_bad in enumerate(bad):
        if is_bad:
            assert sampled.token[i].item() == NO_TOKEN
            assert sampled.status[i].item() == RowStatus.ERROR
        else:
            assert (sampled.token[i], sampled.status[i]) == (clean.token[i], clean.status[i])


def test_some_impossible_tokens_are_no_error() -> None:
    logits = torch.tensor([[float("-inf"), 1.0, float("-inf"), 0.0]])
    for path in Path:
        sampled = sample(logits.clone(), make_rows(1, temperature=1.0), path)
        assert sampled.token[0] in (1, 3)


def test_a_tiny_temperature_is_greedy_and_finite() -> None:
    logits = torch.randn(8, VOCAB, generator=torch.Generator().manual_seed(0))
    rows = make_rows(8, temperature=1e-38)
    sampled = sample(logits.clone(), rows, Path.NOISE)
    assert sampled.token.tolist() == logits.argmax(-1).tolist()


def test_half_precision_logits_are_sampled() -> None:
    logits, rows = _mixed_rows(16)
    half = sample(logits.bfloat16(), rows, Path.FILTERED)
    assert set(half.status.tolist()) <= {RowStatus.OK, RowStatus.STOPPED}
    wide = sample(logits.bfloat16().float(), rows, Path.FILTERED)
    assert half.token.tolist() == wide.token.tolist()


@pytest.mark.parametrize(
    ("asked", "path"),
    [
        ([{}, {"top_k": 5, "top_p": 0.5}], Path.GREEDY),
        ([{}, {"temperature": 1.0}], Path.NOISE),
        ([{"top_k": 5}, {"temperature": 1.0, "min_p": 0.1}], Path.NOISE),
        ([{}, {"temperature": 1.0, "top_k": 5}], Path.FILTERED),
        ([{}, {"temperature": 1.0, "top_p": 0.5}], Path.FILTERED),
    ],
)
def test_the_path_is_the_least_that_serves_all(asked: list[dict[str, float]], path: Path) -> None:
    frame = PlanFrame(plan_buffer(SMALL), SMALL, writable=True)
    rows = [RowSpec(r, 0, 1, RowFlag.SAMPLES) for r in range(len(asked))]
    fill_plan(frame, rows, random.Random(0), epoch=1, step=1)
    for r, row in enumerate(asked):
        for name, default in (("temperature", 0.0), ("top_k", 0), ("top_p", 1.0), ("min_p", 0.0)):
            getattr(frame, name)[r] = row.get(name, default)
    frame.seal(epoch=1, step=1, rows=2, tokens=2, blocks=2, samples=2)
    assert choose_path(frame.read(epoch=1, step=1)) is path
