"""A fake scheduler for tests of the front end's logic: no model, no batch, no policy.

It speaks the scheduler's side of svc_wire.frontend_link on the event loop of the test. A request
gets the tokens that the test's `answer` function makes up, all at once, or, where that returns
None, only what the test sends by hand. It can also reject, fall silent and vanish.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import zmq
import zmq.asyncio

from svc_wire.capacity import ModelInfo
from svc_wire.frontend_link import (
    PROTOCOL_VERSION,
    Abort,
    Attach,
    Attached,
    Detach,
    Finished,
    Outputs,
    Pace,
    Ping,
    Rejected,
    Status,
    Submit,
    ToFrontend,
    Unknown,
    to_frontend,
    to_scheduler,
)
from svc_wire.ids import FinishReason, RejectReason

Answer = Callable[[Submit], Sequence[int] | RejectReason | None]

EOS = 256
MODEL = ModelInfo(name="fake", path="", eos_ids=(EOS,), dtype="none", device="none")
PACE = Pace(
    busy_share=0.5,
    lead_ns=3_000_000,
    gap_ns=20_000,
    gap_ns_max=90_000,
    busy_ns_total=4_500_000_000,
    chained_total=80,
    lead_ns_total=240_000_000,
    gap_ns_total=1_600_000,
)


def echo(submit: Submit) -> Sequence[int]:
    """Gives the prompt back, cut to max_tokens."""
    return prompt_of(submit)[: submit.max_tokens]


def logprobs_of(submit: Submit, token: int) -> list[tuple[int, float]]:
    """What it tells of a token, for itself and for the alternatives that were asked for."""
    asked = submit.logprobs
    return [] if asked is None else [(token + k, -(token + k) / 2) for k in range(1 + asked)]


def prompt_of(submit: Submit) -> list[int]:
    prompt: list[int] = np.frombuffer(submit.prompt, "<i4").tolist()
    return prompt


def status(*, ready: bool = True, reason: str = "", steps: int = 0) -> Status:
    return Status(
        ready=ready,
        reason=reason,
        policy="fake",
        depth=1,
        waiting=2,
        running=3,
        blocks_total=40,
        blocks_free=30,
        steps=steps,
        tokens=7,
        preemptions=1,
        swaps_out=6,
        swaps_in=5,
        policy_faults=2,
        epochs_lost=9,
        pace=PACE,
    )


def finished(
    key: int, reason: FinishReason, *, output_tokens: int, message: str = "", prompt_tokens: int = 0
) -> Finished:
    return Finished(
        key=key,
        reason=reason,
        message=message,
        prompt_tokens=prompt_tokens,
        cached_tokens=1,
        output_tokens=output_tokens,
        preemptions=2,
        queued_ns=3_000_000,
        running_ns=4_000_000,
        busy_share=0.75,
    )


class FakeScheduler:
    """Use as an async context manager; it listens while it is open."""

    def __init__(
        self,
        run_dir: Path,
        answer: Answer = echo,
        *,
        model: ModelInfo = MODEL,
        vocab_size: int = 300,
        sequence_len_max: int = 100,
    ) -> None:
        self.endpoint = f"ipc://{run_dir}/scheduler.sock"
        self.answer = answer
        self.attached: Attached | None = Attached(
            PROTOCOL_VERSION, model, vocab_size, sequence_len_max
        )
        """None: it does not know the model yet, and answers an Attach with the status."""
        self.status = status()
        self.is_silent = False
        self.submits: dict[int, Submit] = {}
        """Every request ever submitted, by key."""
        self.live: dict[int, int] = {}
        """Requests that have not ended: key -> output tokens so far."""
        self.aborts: dict[int, FinishReason] = {}
        self.attaches = 0
        self.pings = 0
        self.detaches = 0
        self._frontends: set[bytes] = set()
        self._owner: dict[int, bytes] = {}
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> Self:
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.bind(self.endpoint)
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Vanishes. May be called twice."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._context.destroy(linger=200)

    # -- what tests do -----------------------------------------------------------------------------

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for something that a message brings about."""
        async with self._changed, asyncio.timeout(10):
            await self._changed.wait_for(condition)

    async def submitted(self, count: int = 1) -> list[int]:
        """Waits until `count` requests are live; returns their keys."""
        await self.until(lambda: len(self.live) >= count)
        return list(self.live)

    async def tokens(
        self, key: int, tokens: Sequence[int], reason: FinishReason | None = None
    ) -> None:
        """Sends tokens, and with a reason the end, in one message."""
        first = self.live[key]
        await self.outputs(key, range(first, first + len(tokens)), tokens, reason)

    async def step(self, token_id: int, *, last: bool = False) -> None:
        """One token for every live request, in one message, as a decode step brings it."""
        keys = [*self.live]
        index = self.live[keys[0]]
        assert set(self.live.values()) == {index}, "for requests that are equally long"
        self.live = {} if last else dict.fromkeys(keys, index + 1)
        ends = (
            tuple(finished(key, FinishReason.LENGTH, output_tokens=index + 1) for key in keys)
            if last
            else ()
        )
        count = len(keys)
        outputs = Outputs(
            np.array(keys, "<u8").tobytes(),
            np.full(count, index, "<i4").tobytes(),
            np.full(count, token_id, "<i4").tobytes(),
            ends,
        )
        await self._send(self._owner[keys[0]], outputs)

    async def outputs(
        self,
        key: int,
        indices: Sequence[int],
        tokens: Sequence[int],
        reason: FinishReason | None = None,
        message: str = "",
    ) -> None:
        self.live[key] += len(tokens)
        ends: tuple[Finished, ...] = ()
        if reason is not None:
            ends = (finished(key, reason, output_tokens=self.live.pop(key), message=message),)
        await self._send(
            self._owner[key],
            Outputs(
                np.full(len(tokens), key, "<u8").tobytes(),
                np.array([*indices], "<i4").tobytes(),
                np.array([*tokens], "<i4").tobytes(),
                ends,
                *self._told(key, tokens),
            ),
        )

    async def tell(self, new: Status) -> None:
        """Changes the status and sends it to every front end."""
        self.status = new
        await self.broadcast(new)

    async def broadcast(self, message: ToFrontend) -> None:
        for identity in self._frontends:
            await self._send(identity, message)

    async def send_raw(self, data: bytes) -> None:
        for identity in self._frontends:
            await self._socket.send_multipart([identity, data])

    def forget(self) -> None:
        """Behaves from now on as after a restart."""
        self._frontends.clear()
        self.live.clear()

    def _told(self, key: int, tokens: Sequence[int]) -> tuple[bytes, bytes, bytes]:
        submit = self.submits[key]
        if submit.logprobs is None:
            return b"", b"", b""
        each = [logprobs_of(submit, token) for token in tokens]
        ids = np.array([token for pairs in each for token, _ in pairs], "<i4")
        values = np.array([value for pairs in each for _, value in pairs], "<f4")
        return bytes(map(len, each)), ids.tobytes(), values.tobytes()

    # -- inside ------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            identity, data = await self._socket.recv_multipart()
            if self.is_silent:
                continue
            await self._handle(identity, data)
            async with self._changed:
                self._changed.notify_all()

    async def _handle(self, identity: bytes, data: bytes) -> None:
        message = to_scheduler.decode(data)
        if isinstance(message, Attach):
            await self._attach(identity)
        elif identity not in self._frontends:
            await self._send(identity, Unknown())
        else:
            match message:
                case Ping():
                    self.pings += 1
                    await self._send(identity, self.status)
                case Submit():
                    await self._submit(identity, message)
                case Abort(key=key, reason=reason):
                    await self._abort(identity, key, reason)
                case Detach():
                    self.detaches += 1
                    self._frontends.discard(identity)

    async def _attach(self, identity: bytes) -> None:
        self.attaches += 1
        if self.attached is not None:
            self._frontends.add(identity)
            await self._send(identity, self.attached)
        await self._send(identity, self.status)

    async def _submit(self, identity: bytes, submit: Submit) -> None:
        assert submit.key not in self.submits or submit.was_accepted, "a key was used twice"
        self.submits[submit.key] = submit
        answer = self.answer(submit)
        if isinstance(answer, RejectReason):
            await self._send(identity, Rejected(submit.key, answer, f"fake {answer.name}"))
            return
        self.live[submit.key] = len(submit.output) // 4
        self._owner[submit.key] = identity
        if answer is not None:
            stopped = bool(answer) and answer[-1] in submit.stop_ids
            reason = FinishReason.STOP_TOKEN if stopped else FinishReason.LENGTH
            await self.tokens(submit.key, answer, reason)

    async def _abort(self, identity: bytes, key: int, reason: FinishReason) -> None:
        assert key not in self.aborts, "a key was aborted twice"
        self.aborts[key] = reason
        if key in self.live:
            await self.outputs(key, [], [], reason)

    async def _send(self, identity: bytes, message: ToFrontend) -> None:
        await self._socket.send_multipart([identity, to_frontend.encode(message)])
