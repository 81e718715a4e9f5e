"""Families through the paged attention equal their own; those that cannot are refused, with why."""

import copy
import random
from typing import Any

import pytest
import torch

from executor_svc.errors import UnsupportedModel
from executor_svc.model import CausalModel, random_model
from executor_svc.packed_linear import pack_linears
from executor_svc.self_check import check_against, reference_logits
from executor_svc.torch_runner import TorchRunner
from svc_wire.capacity import Capacity
from tests.model.families import REFUSED, SUPPORTED, VOCAB
from tests.model.greedy import greedy
from tests.support.planner import Job, Planner
from tests.tiny_model import spread_weights

pytestmark = pytest.mark.model

CAPACITY = Capacity(
    num_blocks=24,
    block_size=4,
    rows_max=4,
    tokens_max=20,
    lanes=6,
    model_len_max=64,
    vocab_size=VOCAB,
)


def _build(family: str) -> CausalModel:
    model = random_model(SUPPORTED[family](), torch.float32, torch.device("cpu"))
    spread_weights(model.module)
    return model


@pytest.mark.parametrize("family", SUPPORTED)
def test_greedy_tokens_equal_those_of_the_family_itself(family: str) -> None:
    model = _build(family)
    plain = copy.deepcopy(model.module)
    plain.set_attn_implementation("eager")
    rng = random.Random(0)
    jobs = [
        Job([rng.randrange(VOCAB) for _ in range(rng.randint(3, 24))], 12, arrives_at_step=2 * i)
        for i in range(5)
    ]
    pack_linears(model.module)
    runner = TorchRunner(model, CAPACITY, family)
    planner = Planner(runner, jobs, depth=1, chunk_max=5, preempt_chance=0.2)
    try:
        outputs = planner.run()
    finally:
        runner.close()
    assert outputs == [greedy(plain, job.prompt, job.max_tokens) for job in jobs]
    assert planner.preemptions


@pytest.mark.parametrize("family", SUPPORTED)
def test_the_check_at_load_accepts_them(family: str) -> None:
    model = _build(family)
    reference = reference_logits(model)
    pack_linears(model.module)
    check_against(model, reference)


@pytest.mark.parametrize("family", REFUSED)
def test_families_that_cannot_be_exact_are_refused(family: str) -> None:
    make, reason = REFUSED[family]
    with pytest.raises(UnsupportedModel, match=reason):
        _accept(make())


def _accept(config: Any) -> None:
    model = random_model(config, torch.float32, torch.device("cpu"))
    spread_weights(model.module)
    check_against(model, reference_logits(model))


def test_the_check_at_load_sees_a_wrong_weight() -> None:
    model = _build("llama")
    reference = reference_logits(model)
    model.module.model.layers[1].self_attn.o_proj.weight.data[:, 0] += 1.0
    with pytest.raises(UnsupportedModel, match="logits differ"):
        check_against(model, reference)


def test_dimensions_are_those_of_each_layer() -> None:
    shape = _build("deepseek_v3_dv").layers[0]
    assert (shape.query_heads, shape.kv_heads, shape.key_dim, shape.value_dim) == (4, 4, 16, 12)
