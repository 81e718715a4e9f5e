"""The real model through all services: greedy output equals plain `transformers`, token for token.

16 prompts of 5 to 900 tokens arrive at random moments; overlap off, on and deeper; a KV pool so
small that pre-emption happens; the prefix cache on and off. In fp32 batching changes no choice.
"""

import asyncio
import inspect
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from executor_svc.embedded import embedded_folder
from tests.support.stack import Stack
from twostroke_client import AsyncClient, Client

pytestmark = [pytest.mark.model, pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(600)]

NEW = 48
LENGTHS = [5, 17, 31, 33, 48, 64, 65, 100, 128, 150, 200, 257, 300, 420, 640, 900]
SENTENCES = [
    "The old lighthouse keeper counted the ships that passed before dawn.",
    "Water boils at a lower temperature on a high mountain than by the sea.",
    "She wrote three letters, burned two of them and kept the last one.",
    "A compiler turns a program that people can read into one that machines can run.",
    "In spring the river carries more sand than stones to the harbour.",
    "List the planets of the solar system in order and say one thing about each.",
]


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(embedded_folder())
    chance = random.Random(5)
    texts = [" ".join(chance.choices(SENTENCES, k=80)) for _ in LENGTHS]
    return [tokenizer(t).input_ids[:n] for t, n in zip(texts, LENGTHS, strict=True)]


@pytest.fixture(scope="module")
def expected(prompts: list[list[int]]) -> list[list[int]]:
    """Plain greedy generation, one prompt at a time, with transformers' own cache."""
    model = AutoModelForCausalLM.from_pretrained(embedded_folder(), dtype=torch.float32).eval()
    eos = model.generation_config.eos_token_id
    return [greedy(model, prompt, eos) for prompt in prompts]


@torch.no_grad()
def greedy(model: torch.nn.Module, prompt: list[int], eos: int) -> list[int]:
    past, ids, output = DynamicCache(config=model.config), torch.tensor([prompt]), list[int]()
    parameters = inspect.signature(model.forward).parameters
    name = "cache" if "cache" in parameters else "past_key_values"
    while len(output) < NEW and (not output or output[-1] != eos):
        logits = model(input_ids=ids, use_cache=True, logits_to_keep=1, **{name: past}).logits
        output.append(int(logits[0, -1].argmax()))
        ids = torch.tensor([output[-1:]])
    return output


async def generate_all(address: str, prompts: list[list[int]], seed: int) -> list[list[int]]:
    """All prompts, each after a random delay of up to three seconds."""
    chance = random.Random(seed)
    client = AsyncClient(address)

    async def one(prompt: list[int], delay_s: float) -> list[int]:
        await asyncio.sleep(delay_s)
        answer = await client.complete(prompt, max_tokens=NEW, temperature=0.0)
        return list(answer.token_ids)

    try:
        return await asyncio.gather(*(one(p, chance.uniform(0, 3)) for p in prompts))
    finally:
        await client.close()


@pytest.mark.parametrize(
    ("pool", "settings"),
    [
        ("large", [(0, False), (1, True)]),
        # The longest request needs 237 blocks of 4.
        ("small", [(0, True), (1, False), (2, True)]),
    ],
)
def test_greedy_tokens_equal_plain_generation(
    pool: str,
    settings: list[tuple[int, bool]],
    prompts: list[list[int]],
    expected: list[list[int]],
) -> None:
    blocks = {"large": "2048", "small": "240"}[pool]
    executor = ("--model", "smollm2", "--dtype", "float32", "--block-size", "4")
    preemptions = 0
    with Stack(executor=(*executor, "--num-blocks", blocks)) as stack:
        # The executor keeps its weights while schedulers come and go.
        for depth, cache in settings:
            stack.end("scheduler_svc")
            flag = "--prefix-cache" if cache else "--no-prefix-cache"
            stack.start("scheduler_svc", "--depth", str(depth), flag)
            stack.wait_ready()
            tokens = asyncio.run(generate_all(stack.address, prompts, seed=depth))
            assert tokens == expected, (pool, depth, cache)
            with Client(stack.address) as client:
                status = client.server_status()
                assert status.blocks_free == status.blocks_total
                preemptions += status.preemptions
    assert (preemptions > 0) == (pool == "small")


def test_greedy_tokens_survive_handovers(
    prompts: list[list[int]], expected: list[list[int]]
) -> None:
    """Each scheduler goes on with the KV that the executor computed for the one before."""
    executor = ("--model", "smollm2", "--dtype", "float32", "--num-blocks", "512")
    few, right = prompts[:8], expected[:8]
    with (
        ThreadPoolExecutor(1) as pool,
        Stack(executor=executor) as stack,
        Client(stack.address) as client,
    ):
        answers = pool.submit(asyncio.run, generate_all(stack.address, few, seed=2))
        for _ in range(3):
            begin_with = client.server_status().output_tokens
            while client.server_status().output_tokens < begin_with + 40:
                assert not answers.done(), "the change comes too late"
                time.sleep(0.05)
            old = stack.processes["scheduler_svc"]
            stack.start("scheduler_svc", "--replace")
            assert old.wait(20) == 0
            stack.wait_ready()
        assert answers.result(300) == right
        assert "going on with the KV" in stack.logs()


def test_greedy_tokens_survive_kills(prompts: list[list[int]], expected: list[list[int]]) -> None:
    executor = ("--model", "smollm2", "--dtype", "float32", "--num-blocks", "512")
    patience = ("--outage-timeout", "120")
    with (
        ThreadPoolExecutor(1) as pool,
        Stack(executor=executor, frontend=patience) as stack,
        Client(stack.address) as client,
    ):
        answers = pool.submit(asyncio.run, generate_all(stack.address, prompts, seed=1))
        for _ in range(3):
            begin_with = client.server_status().output_tokens
            while client.server_status().output_tokens < begin_with + 40:
                assert not answers.done(), "the blow comes too late"
                time.sleep(0.05)
            stack.end("executor_svc", signal.SIGKILL)
            stack.start("executor_svc")
            stack.wait_ready()
        assert answers.result(300) == expected
