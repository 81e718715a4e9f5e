"""Requests to the hash model, what each must produce, and clients that insist on it."""

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass

import msgspec

from executor_svc.hash_model import expected_logprobs, expected_tokens
from svc_wire.frontend_link import Sampling
from twostroke_client import (
    AsyncClient,
    Cancelled,
    Client,
    DeadlineExceeded,
    Delta,
    FinishReason,
    GenerateOptions,
    RetryPolicy,
)


@dataclass(frozen=True)
class Job:
    """A request, what it must produce, and how its client behaves."""

    prompt: list[int]
    options: GenerateOptions
    expected: list[int]
    vocab_size: int
    cancel_after: int | None = None
    timeout_s: float | None = None


def make_job(chance: random.Random, vocab_size: int, **behaviour: float | int | None) -> Job:
    prompt = [chance.randrange(vocab_size) for _ in range(chance.randint(1, 200))]
    sampling = Sampling()
    if chance.random() < 0.5:
        # Values that float32 holds exactly, since the oracle hashes their bits.
        sampling = Sampling(
            temperature=chance.choice([0.5, 1.0, 1.25]),
            top_k=chance.choice([0, 5, 40]),
            top_p=chance.choice([1.0, 0.5]),
            min_p=chance.choice([0.0, 0.125]),
            seed=chance.randrange(-(2**63), 2**63),
        )
    if chance.random() < 0.3:
        sampling = msgspec.structs.replace(
            sampling,
            repetition_penalty=chance.choice([1.0, 1.5]),
            presence_penalty=chance.choice([0.0, -0.5]),
            frequency_penalty=chance.choice([0.25, 2.0]),
        )
    stop_ids = chance.sample(range(vocab_size), chance.randint(0, 4))
    max_tokens = chance.randint(1, 120)
    min_tokens = min(chance.choice([0, 0, 5]), max_tokens)
    if behaviour:
        stop_ids, max_tokens = [], 800
    expected = expected_tokens(
        prompt,
        vocab_size=vocab_size,
        max_tokens=max_tokens,
        sampling=sampling,
        stop_ids=stop_ids,
        min_tokens=min_tokens,
    )
    options = GenerateOptions(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=sampling.seed,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logprobs=chance.choice([None, None, 0, 2]),
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop_token_ids=stop_ids,
        ignore_eos=True,
    )
    return Job(prompt, options, expected, vocab_size, **behaviour)  # type: ignore[arg-type]


async def run_job(client: AsyncClient, job: Job) -> str:
    """Runs a job, checks its stream, returns how it ended."""
    tokens: list[int] = []
    text = ""
    end = "nothing"
    try:
        stream = client.generate(job.prompt, timeout_s=job.timeout_s, **job.options)
        async with stream:
            async for delta in stream:
                assert end == "nothing", "a piece after the end"
                assert delta.first_index == len(tokens), "a gap in the indices"
                check_logprobs(job, delta)
                tokens += delta.token_ids
                text += delta.text
                if job.cancel_after is not None and len(tokens) >= job.cancel_after:
                    end = "cancelled"
                    break
                if delta.finish is not None:
                    end = delta.finish.reason
                    assert delta.finish.output_tokens == len(tokens)
                    assert delta.finish.prompt_tokens == len(job.prompt)
    except (DeadlineExceeded, Cancelled) as error:
        end = type(error).__name__
    if end in (FinishReason.STOP, FinishReason.LENGTH):
        assert tokens == job.expected
        assert text == text_of(tokens)
        assert (end == FinishReason.LENGTH) == (len(tokens) == job.options["max_tokens"]) or (
            tokens[-1] in job.options["stop_token_ids"]
        )
    else:
        assert tokens == job.expected[: len(tokens)]
    return end


def check_logprobs(job: Job, delta: Delta) -> None:
    """Each token has those that were asked for, of its own position."""
    asked = job.options["logprobs"]
    if asked is None:
        assert not delta.logprobs
        return
    position = len(job.prompt) + delta.first_index
    assert [
        (entry.chosen.token_id, entry.chosen.logprob, [(t.token_id, t.logprob) for t in entry.top])
        for entry in delta.logprobs
    ] == [
        (token, *expected_logprobs(position + k, token, asked, job.vocab_size))
        for k, token in enumerate(delta.token_ids)
    ]


def text_of(tokens: list[int]) -> str:
    """What the hash model's tokenizer makes of an answer: ids below 256 are bytes."""
    return bytes(token for token in tokens if token < 256).decode("utf-8", "replace")


PATIENT = RetryPolicy(attempts=50)
"""For those who come while the executor falls again and again."""


async def run_round(
    address: str, jobs: list[Job], retry: RetryPolicy | None = None
) -> Counter[str]:
    client = AsyncClient(address, retry=retry)
    try:
        return Counter(await asyncio.gather(*(run_job(client, job) for job in jobs)))
    finally:
        await client.close()


def wait_idle(client: Client, timeout_s: float = 5.0) -> None:
    """Returns when nothing waits or runs and all blocks are free."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        status = client.server_status()
        if (status.waiting, status.running) == (0, 0) and status.blocks_free == status.blocks_total:
            return
        time.sleep(0.02)
    raise AssertionError(f"not idle: {client.server_status()}")
