"""Jobs through a real front end: one gRPC stream a request, token ids in and out."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import grpc.aio
import numpy as np

from bench.stack import WAYS, Job, JobRun, service, steps_since, steps_written
from svc_wire.rundir import RunDir
from tests.tiny_model import tiny_tokenizer
from twostroke.v1 import generation_pb2 as pb

_START_TIMEOUT_S = 60.0
_FILE = "frontend.address"


class GrpcStreams:
    """A client of one front end; `run` is that of bench.stack.Client."""

    def __init__(self, address: str, trace: Path) -> None:
        self._address = address
        self._trace = trace
        self._rng = np.random.default_rng(0)

    @classmethod
    @contextlib.contextmanager
    def served(cls, run_dir: RunDir, folder: Path, trace: Path) -> Iterator["GrpcStreams"]:
        """With a front end of its own, beside a scheduler that runs the model of `folder`.

        The folder gets a tokenizer, which no front end is without; only ids are sent.
        """
        tiny_tokenizer().save_pretrained(folder)
        with service("frontend_svc", "--run-dir", str(run_dir.path), "--port", "0"):
            file, deadline = Path(run_dir.path, _FILE), time.monotonic() + _START_TIMEOUT_S
            while not file.exists():
                assert time.monotonic() < deadline, "the front end does not come up"
                time.sleep(0.05)
            yield cls(file.read_text().strip(), trace)

    def run(self, job: Job) -> JobRun:
        """Opens all streams at once and reads them to their end."""
        before = steps_written(self._trace)
        seconds, first = asyncio.run(self._run(job))
        return JobRun(seconds, float(np.median(first)), steps_since(self._trace, before))

    async def _run(self, job: Job) -> tuple[float, list[float]]:
        async with grpc.aio.insecure_channel(self._address) as channel:
            vocab = await self._vocab(channel)
            requests = [self._request(job, vocab) for _ in range(job.batch)]
            begin = time.monotonic()
            first = await asyncio.gather(
                *(_first_token(channel, request, job.new, begin) for request in requests)
            )
            return time.monotonic() - begin, first

    @staticmethod
    async def _vocab(channel: grpc.aio.Channel) -> int:
        call = channel.unary_unary(
            "/twostroke.v1.ModelService/GetModelInfo",
            request_serializer=pb.GetModelInfoRequest.SerializeToString,
            response_deserializer=pb.GetModelInfoResponse.FromString,
        )
        answer = await call(pb.GetModelInfoRequest(), wait_for_ready=True)
        return int(answer.vocab_size)

    def _request(self, job: Job, vocab: int) -> pb.GenerateRequest:
        way = WAYS[job.sampling]
        request = pb.GenerateRequest(
            token_ids=pb.TokenIds(ids=self._rng.integers(0, vocab, job.prompt).tolist()),
            sampling=pb.SamplingParams(
                temperature=way.temperature,
                top_k=way.top_k,
                top_p=way.top_p,
                seed=way.seed,
                repetition_penalty=way.repetition_penalty,
                frequency_penalty=way.frequency_penalty,
            ),
            stop=pb.StopCriteria(max_tokens=job.new, ignore_eos=True),
        )
        request.output.text = False
        return request


async def _first_token(
    channel: grpc.aio.Channel, request: pb.GenerateRequest, new: int, begin: float
) -> float:
    """Reads a stream to its end; seconds from `begin` to its first token."""
    call = channel.unary_stream(
        "/twostroke.v1.GenerationService/Generate",
        request_serializer=pb.GenerateRequest.SerializeToString,
        response_deserializer=pb.GenerateResponse.FromString,
    )
    first, count = 0.0, 0
    async for message in call(request, wait_for_ready=True):
        first = first or time.monotonic() - begin
        count += len(message.token_ids)
    assert count == new, f"{count} tokens came back"
    return first
