"""What the commands of a scenario do: a scheduler, an executor with real frames, and names."""

from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from executor_svc.hash_model import expected_tokens
from scheduler_svc.core import (
    Ending,
    PlannedStep,
    Rejection,
    Request,
    Scheduler,
    SchedulerConfig,
    StepOutput,
    policies,
)
from svc_wire.capacity import Capacity
from svc_wire.frames import BatchPlan, StepResult
from svc_wire.frontend_link import Sampling
from svc_wire.ids import FinishReason, RowFlag, SeqId
from svc_wire.ring import FRAMES
from tests.sim.executor import SimExecutor

VOCAB_SIZE = 1000
STEM = range(100, 200)
"""What the prompts of several requests may begin with."""

Arguments = dict[str, str]


class Stage:
    """One scenario's world. Each command returns the lines that it shows."""

    def __init__(self) -> None:
        self.commands: dict[str, Callable[[list[str], Arguments], list[str]]] = {
            "scheduler": self._scheduler,
            "executor": self._executor,
            "lose": self._lose,
            "hand-over": self._hand_over,
            "add": self._add,
            "abort": self._abort,
            "plan": self._plan,
            "execute": self._execute,
            "commit": self._commit,
            "commit-again": self._commit_again,
            "finish": self._finish,
            "stats": self._stats,
        }
        self._published: deque[PlannedStep] = deque()
        self._executed: deque[StepResult] = deque()
        self._committed: list[StepResult] = []
        self._names: dict[SeqId, str] = {}
        self._requests: dict[str, Request] = {}
        self._outputs: dict[str, list[int]] = {}
        self._epoch = 0

    def run(self, line: str) -> list[str]:
        """Runs one command: a verb, then words and name=value arguments."""
        verb, *words = line.split()
        plain = [word for word in words if "=" not in word]
        named = dict(word.split("=", 1) for word in words if "=" in word)
        shown = self.commands[verb](plain, named)
        self._core.check()
        return shown or ["ok"]

    # -- who is there ------------------------------------------------------------------------------

    def _scheduler(self, _: list[str], named: Arguments) -> list[str]:
        policy = policies.BY_NAME[named.pop("policy", "fcfs")]()
        config = SchedulerConfig(
            depth=int(named.pop("depth", 0)),
            step_tokens_max=int(named.pop("budget", 16)),
            running_max=int(named.pop("running", 8)),
            waiting_max=int(named.pop("waiting", 8)),
            prefix_cache=named.pop("prefix_cache", "on") == "on",
            losses_max=int(named.pop("losses", 2)),
        )
        self._core = Scheduler(config, policy)
        return self._executor([], named)

    def _executor(self, _: list[str], named: Arguments) -> list[str]:
        """An executor is ready: the first, or another one after a loss."""
        capacity = Capacity(
            num_blocks=int(named.pop("blocks", 16)),
            block_size=int(named.pop("block_size", 4)),
            rows_max=8,
            tokens_max=64,
            lanes=8,
            model_len_max=int(named.pop("model_len", 64)),
            vocab_size=VOCAB_SIZE,
            host_blocks=int(named.pop("host_blocks", 0)),
            block_copy_ns=int(named.pop("block_copy_us", 0)) * 1000,
        )
        assert not named, f"unknown arguments: {named}"
        self._epoch += 1
        self._ring = SimExecutor(capacity)
        self._ring.begin(self._epoch, 0)
        return self._endings(self._core.attach(capacity, self._epoch))

    def _lose(self, _: list[str], __: Arguments) -> list[str]:
        self._published.clear()
        return self._endings(self._core.executor_lost())

    def _hand_over(self, _: list[str], __: Arguments) -> list[str]:
        """The scheduler leaves as ordered; front ends bring their live requests to the next one."""
        live = [self._names[seq_id] for seq_id in self._core._roster.sequences]
        kv = self._core.hand_over()
        self._epoch += 1
        self._ring.begin(self._epoch, 0)
        self._core = Scheduler(self._core.config, self._core.policy)
        self._core.attach(self._ring.capacity, self._epoch, kv)
        for name in live:
            output = np.array(self._outputs[name], np.int32)
            request = replace(self._requests[name], output=output, was_accepted=True)
            self._names[self._core.add(request)] = name
        return [f"blocks {' '.join(map(str, sorted(kv.blocks.tolist())))} are full"]

    # -- requests ----------------------------------------------------------------------------------

    def _add(self, words: list[str], named: Arguments) -> list[str]:
        """`shared` tokens of the common stem, then `prompt` tokens of its own.

        `stop_at=N`: the id that this request would sample as output N is a stop id.
        `penalty=X`: a frequency penalty.
        """
        (name,) = words
        shared, own = int(named.pop("shared", 0)), int(named.pop("prompt", 0))
        prompt = [*STEM[:shared], *(200 + 40 * (ord(name) - ord("A")) + k for k in range(own))]
        max_tokens, min_tokens = int(named.pop("max", 4)), int(named.pop("min", 0))
        sampling = Sampling(frequency_penalty=float(named.pop("penalty", 0)))
        output = expected_tokens(
            prompt, vocab_size=VOCAB_SIZE, max_tokens=max_tokens, sampling=sampling
        )
        stop_at = [int(index) for index in named.pop("stop_at", "").split(",") if index]
        request = Request(
            prompt=np.array(prompt, np.int32),
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            stop_ids=tuple(output[index] for index in stop_at),
            sampling=sampling,
            priority=int(named.pop("priority", 0)),
        )
        assert not named, f"unknown arguments: {named}"
        try:
            seq_id = self._core.add(request)
        except Rejection as rejection:
            return [f"rejected {rejection.reason.name}: {rejection.message}"]
        self._names[seq_id], self._requests[name], self._outputs[name] = name, request, []
        return []

    def _abort(self, words: list[str], _: Arguments) -> list[str]:
        (name,) = words
        seq_id = next(seq_id for seq_id, other in self._names.items() if other == name)
        ending = self._core.abort(seq_id, FinishReason.ABORT)
        return self._endings([ending]) if ending else ["it has ended before"]

    # -- steps -------------------------------------------------------------------------------------

    def _plan(self, _: list[str], __: Arguments) -> list[str]:
        frame = self._ring.plans[self._core.next_step % FRAMES]
        preemptions = self._core.stats().preemptions
        planned = self._core.plan(frame)
        if planned is None:
            return ["nothing"]
        self._published.append(planned)
        plan = frame.read(epoch=planned.epoch, step=planned.step)
        shown = [f"step {planned.epoch}.{planned.step}, {plan.tokens} tokens"]
        shown += [f"  {self._row(plan, row)}" for row in range(plan.rows)]
        if preempted := self._core.stats().preemptions - preemptions:
            shown.append(f"  {preempted} pre-empted")
        for word, copies in (("out", plan.copies_out), ("in", plan.copies_in)):
            shown += [f"  block {device} {word}, host block {host}" for device, host in copies]
        return shown

    def _row(self, plan: BatchPlan, row: int) -> str:
        batch = self._core._roster.batch
        assert batch is not None
        lane, flags = int(plan.row_lane[row]), int(plan.row_flags[row])
        blocks = plan.block_ids[plan.block_indptr[row] : plan.block_indptr[row + 1]]
        words = [
            self._names[SeqId(int(batch.table.seq_id[lane]))],
            f"[{plan.row_start[row]}:{plan.row_stop[row]})",
            "blocks",
            *map(str, blocks.tolist()),
        ]
        if flags & RowFlag.SAMPLES:
            words += [flag.name.lower() for flag in RowFlag if flags & flag and flag.name]
        return " ".join(words)

    def _execute(self, _: list[str], named: Arguments) -> list[str]:
        """The executor computes the oldest step that it has not, and nobody looks yet.

        `broken=N`: row N has no finite scores.
        """
        step = self._ring.completed + 1
        broken = int(named["broken"]) if "broken" in named else None
        self._executed.append(self._ring.execute(step, took_ms=10, broken_row=broken))
        return []

    def _commit(self, _: list[str], __: Arguments) -> list[str]:
        """The result of the oldest step reaches the scheduler."""
        if not self._executed:
            self._execute([], {})
        result = self._executed.popleft()
        if self._published and result.epoch == self._epoch:
            self._published.popleft()
        self._committed.append(result)
        return self._take(self._core.commit(result)) or ["nothing"]

    def _commit_again(self, _: list[str], __: Arguments) -> list[str]:
        return self._take(self._core.commit(self._committed[-1])) or ["nothing"]

    def _take(self, output: StepOutput) -> list[str]:
        shown = []
        for seq_id, index, token in zip(
            output.seq_ids.tolist(), output.indices.tolist(), output.tokens.tolist(), strict=True
        ):
            name = self._names[seq_id]
            assert index == len(self._outputs[name])
            self._outputs[name].append(token)
            shown.append(f"{name} output {index}")
        return shown + self._endings(list(output.endings))

    def _endings(self, endings: list[Ending]) -> list[str]:
        return [
            f"{self._names[ending.seq_id]} ends: {ending.reason.name}, "
            f"{ending.output_tokens} tokens, {ending.cached_tokens} cached, "
            f"{ending.preemptions} pre-emptions" + (f": {ending.message}" if ending.message else "")
            for ending in endings
        ]

    def _finish(self, _: list[str], __: Arguments) -> list[str]:
        """Steps until everybody has ended; shows the endings and how many steps it took."""
        shown, steps = [], 0
        while self._core.stats().waiting + self._core.stats().running:
            while self._plan([], {}) != ["nothing"]:
                steps += 1
            shown += [line for line in self._commit([], {}) if " ends: " in line]
        while self._published:
            self._commit([], {})
        return [*shown, f"{steps} more steps"]

    def _stats(self, _: list[str], __: Arguments) -> list[str]:
        stats = self._core.stats()
        sequences = f"waiting {stats.waiting}, running {stats.running}"
        blocks = f"blocks free {stats.blocks_free} of {stats.blocks_total}"
        shown = [f"{sequences}, in flight {stats.in_flight}, {blocks}"]
        batch = self._core._roster.batch
        if batch and batch.capacity.host_blocks:
            shown.append(f"host blocks free {batch.swap.free} of {batch.capacity.host_blocks}")
        return shown
