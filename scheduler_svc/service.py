"""The scheduler's process: one loop that settles results, plans steps and serves the front ends.

The critical path comes first: when a result is there, the core commits it and plans the next step,
the plan is published, and only then do the front ends get their tokens. While steps are in flight
the loop spins on the result word (bounded, and only on machines with CPUs to spare), then it
blocks. Idle, it wakes once a second.

Nothing is lost with this process: the front ends keep their live requests and bring them to its
successor, and the executor stays. So it may leave at any moment, and need not end anybody.
"""

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import structlog
import zmq

from scheduler_svc.core import (
    Ending,
    PlannedStep,
    Policy,
    PolicyFault,
    ProtocolViolation,
    Rejection,
    Request,
    Scheduler,
    SchedulerConfig,
    StepOutput,
)
from scheduler_svc.core.policies import OptionError
from scheduler_svc.executor_link import ExecutorLink, Lost, Ready
from scheduler_svc.frontends import Frontend, Frontends
from scheduler_svc.meter import BusyMeter
from scheduler_svc.policy_finder import PolicyNotFound, make_policy, names
from svc_wire.capacity import Capacity, ModelInfo
from svc_wire.errors import FrameError
from svc_wire.frontend_link import (
    PROTOCOL_VERSION,
    Abort,
    AskPolicy,
    Attached,
    Finished,
    PolicyInForce,
    Rejected,
    Status,
    Submit,
    TenantUsage,
)
from svc_wire.ids import FinishReason, RejectReason, SeqId
from svc_wire.rundir import RunDir

TICK_S = 1.0
"""Heartbeats, sweeps and looks at the clock happen so often."""
IN_FLIGHT_WAIT_S = 0.2
"""Longest block while a step is in flight: the answer to a doorbell that was lost, and how late a
stall is seen."""
SPIN_S = 0.02
SPIN_CPUS_MIN = 4

log = structlog.get_logger(service="scheduler")


@dataclass(slots=True, eq=False)
class _Progress:
    """When a request passed its stations."""

    submitted_ns: int
    first_row_ns: int = 0
    busy_at_first_row_ns: int = 0


class Service:
    """The core between its sockets. `run` returns after `stop` or `leave`, which signal handlers
    may call."""

    def __init__(
        self,
        run_dir: RunDir,
        config: SchedulerConfig,
        policy: Policy,
        *,
        stall_timeout_s: float,
        drain_timeout_s: float,
        pulse: Callable[[], object],
    ) -> None:
        """`pulse` shows that the loop turns; see svc_shell/pulse.py."""
        self._core = Scheduler(config, policy)
        self._stall_timeout_s = stall_timeout_s
        self._drain_timeout_s = drain_timeout_s
        self._pulse = pulse
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context = context
        self._executor = ExecutorLink(context, run_dir.executor_endpoint)
        self._frontends = Frontends(context, run_dir.scheduler_endpoint)
        self._poller = zmq.Poller()
        for socket in (self._executor.socket, self._executor.monitor, self._frontends.socket):
            self._poller.register(socket, zmq.POLLIN)
        self._in_flight: list[PlannedStep] = []
        self._progress: dict[SeqId, _Progress] = {}
        self._meter = BusyMeter()
        self._capacity: Capacity | None = None
        self._model: ModelInfo | None = None
        self._told_ready: bool | None = None
        self._spins = len(os.sched_getaffinity(0)) >= SPIN_CPUS_MIN
        self._stopping_at: float | None = None
        self._is_leaving = False
        self._progress_at = 0.0
        """When the oldest step in flight became the oldest."""
        self._next_tick = 0.0
        self._policy_faults = 0

    def stop(self) -> None:
        """No new requests from now on; ends when the last is done or the drain timeout is over.

        A second call is `leave`.
        """
        if self._stopping_at is not None:
            self.leave()
        else:
            self._stopping_at = time.monotonic() + self._drain_timeout_s

    def leave(self) -> None:
        """Ends at once; a successor goes on with the requests."""
        self._is_leaving = True

    def run(self) -> None:
        log.info("waiting for the executor")
        while not self._is_done():
            self._wait()
            self._turn()
        log.info("leaving", requests=len(self._progress))
        self._executor.close()
        self._frontends.close()
        self._context.term()
        log.info("stopped")

    def _is_done(self) -> bool:
        if self._is_leaving or self._stopping_at is None:
            return self._is_leaving
        return not self._progress or time.monotonic() >= self._stopping_at

    # -- the loop ----------------------------------------------------------------------------------

    def _turn(self) -> None:
        """One pass: results and plans first, then everything else."""
        outputs = self._settle()
        now = time.monotonic()
        for event in self._executor.receive(now):
            self._on_executor(event)
        status = self._status(now)
        for frontend, message in self._frontends.receive(now, self._attached(), status):
            match message:
                case Submit():
                    self._submit(frontend, message)
                case Abort():
                    self._abort(frontend, message)
                case AskPolicy():
                    self._frontends.tell_policy(frontend, self._ask_policy(message))
        self._plan()
        for output in outputs:
            self._deliver(output)
        self._abort_dropped()
        self._frontends.flush()
        self._tell_if_changed(status)
        if now >= self._next_tick:
            self._tick(now)

    def _settle(self) -> list[StepOutput]:
        """Commits what is complete; plans anew after each commit."""
        outputs = []
        while self._in_flight and self._executor.is_complete(self._in_flight[0].step):
            flight = self._in_flight.pop(0)
            try:
                result = self._executor.collect(flight.step, flight.rows)
                outputs.append(self._core.commit(result))
            except (FrameError, ProtocolViolation) as error:
                for event in self._executor.begin_anew(f"unusable result: {error}"):
                    self._on_executor(event)
                break
            self._meter.add(result.timing, time.monotonic_ns())
            self._executor.heard_at = self._progress_at = time.monotonic()
            self._plan()
        return outputs

    def _plan(self) -> None:
        """Publishes as many steps as the depth allows."""
        while self._executor.epoch is not None:
            step = self._core.next_step
            planned = self._core.plan(self._executor.frame(step))
            if planned is None:
                return
            self._executor.publish(planned.step)
            if not self._in_flight:
                self._progress_at = time.monotonic()
            self._in_flight.append(planned)
            now_ns = time.monotonic_ns()
            for seq_id in planned.first_rows:
                progress = self._progress[seq_id]
                progress.first_row_ns = now_ns
                progress.busy_at_first_row_ns = self._meter.busy_ns

    def _wait(self) -> None:
        """Returns when something may have happened; never later than the next tick."""
        timeout_s = max(0.0, self._next_tick - time.monotonic())
        if self._in_flight:
            step = self._in_flight[0].step
            if self._spins and self._spin(step):
                return
            timeout_s = min(timeout_s, IN_FLIGHT_WAIT_S)
            self._executor.set_waiting(True)
            if self._executor.is_complete(step):
                timeout_s = 0.0
        self._poller.poll(math.ceil(timeout_s * 1000))
        self._executor.set_waiting(False)

    def _spin(self, step: int) -> bool:
        """Watches the result word for a bounded time; whether it is worth a pass of the loop."""
        deadline = time.monotonic() + SPIN_S
        while time.monotonic() < deadline:
            for _ in range(100):
                if self._executor.is_complete(step):
                    return True
                os.sched_yield()
            if self._frontends.socket.poll(0) or self._executor.socket.poll(0):
                return True
        return False

    def _tick(self, now: float) -> None:
        self._next_tick = now + TICK_S
        self._pulse()
        self._frontends.sweep(now)
        self._executor.beat(self._in_flight[-1].step if self._in_flight else 0)
        self._tell_policy_faults()

    # -- the executor ------------------------------------------------------------------------------

    def _on_executor(self, event: Ready | Lost) -> None:
        match event:
            case Lost(reason=reason):
                log.warning("executor lost", reason=reason)
                self._in_flight.clear()
                endings = self._core.executor_lost()
            case Ready(epoch=epoch, capacity=capacity, model=model):
                log.info("executor ready", epoch=epoch, model=model.name, device=model.device)
                before = self._attached()
                self._capacity, self._model = capacity, model
                if before is not None and before != self._attached():
                    # They come back with their requests, if those can go on with it.
                    self._frontends.drop_all("something else is served now")
                    self._abort_dropped()
                endings = self._core.attach(capacity, epoch)
        for ending in endings:
            self._end(ending)
        now = time.monotonic()
        if (attached := self._attached()) is not None:
            self._frontends.attach_early(now, attached, self._status(now))
        self._tell_if_changed(self._status(now))

    # -- requests ----------------------------------------------------------------------------------

    def _submit(self, frontend: Frontend, submit: Submit) -> None:
        try:
            if self._stopping_at is not None and not submit.was_accepted:
                raise Rejection(RejectReason.DRAINING, "the scheduler is shutting down")
            if submit.key in frontend.sequences:
                raise Rejection(RejectReason.INVALID, f"the key {submit.key} is in use")
            seq_id = self._core.add(
                Request(
                    prompt=np.frombuffer(submit.prompt, "<i4").astype(np.int32),
                    output=np.frombuffer(submit.output, "<i4").astype(np.int32),
                    was_accepted=submit.was_accepted,
                    max_tokens=submit.max_tokens,
                    min_tokens=submit.min_tokens,
                    stop_ids=submit.stop_ids,
                    sampling=submit.sampling,
                    priority=submit.priority,
                    tenant=submit.tenant,
                    expected_tokens=submit.expected_tokens,
                    deadline_s=submit.deadline_ns / 1e9 if submit.deadline_ns else math.inf,
                ),
                now_s=time.monotonic(),
            )
        except Rejection as rejection:
            message = Rejected(submit.key, rejection.reason, rejection.message)
            self._frontends.reject(frontend, message)
            return
        self._frontends.accept(frontend, submit.key, seq_id)
        self._progress[seq_id] = _Progress(time.monotonic_ns())

    def _abort(self, frontend: Frontend, abort: Abort) -> None:
        if (seq_id := frontend.sequences.get(abort.key)) is not None:
            self._end(self._core.abort(seq_id, abort.reason))

    # -- the policy --------------------------------------------------------------------------------

    def _ask_policy(self, ask: AskPolicy) -> PolicyInForce:
        """Puts another policy in force, if one is asked for, and tells which one is."""
        error = ""
        if ask.name:
            try:
                # Only what is installed under a name: this must not import whatever a caller says.
                policy = make_policy(ask.name, ask.options, allow_module=False)
                self._core.set_policy(policy)
                log.info("policy changed", policy=policy.name, options=ask.options)
            except (PolicyNotFound, OptionError, PolicyFault) as refused:
                error = str(refused)
                log.warning("policy not changed", asked=ask.name, error=error)
        stats = self._core.stats()
        return PolicyInForce(
            ticket=ask.ticket,
            error=error,
            name=self._core.policy.name,
            available=tuple(names()),
            faults=stats.policy_faults,
            last_fault=self._core.policy_fault,
            reliefs=stats.reliefs,
            tenants=tuple(
                TenantUsage(
                    tenant,
                    usage.requests,
                    usage.prompt_tokens,
                    usage.cached_tokens,
                    usage.output_tokens,
                    usage.preemptions,
                )
                for tenant, usage in self._core.tenants().items()
            ),
        )

    def _tell_policy_faults(self) -> None:
        """Logs that a policy was replaced, once each."""
        faults = self._core.stats().policy_faults
        if faults != self._policy_faults:
            self._policy_faults = faults
            log.error(
                "policy replaced",
                by=self._core.policy.name,
                reason=self._core.policy_fault,
                faults=faults,
            )

    # -- tokens ------------------------------------------------------------------------------------

    def _deliver(self, output: StepOutput) -> None:
        for seq_id, index, token in zip(
            output.seq_ids.tolist(), output.indices.tolist(), output.tokens.tolist(), strict=True
        ):
            self._frontends.add_token(seq_id, index, token)
        for ending in output.endings:
            self._end(ending)

    def _end(self, ending: Ending | None) -> None:
        """Tells the front end how a sequence ended."""
        if ending is None:
            return
        progress = self._progress.pop(ending.seq_id)
        key = self._frontends.key_of(ending.seq_id)
        if key is None:
            return
        now_ns = time.monotonic_ns()
        first_ns = progress.first_row_ns or now_ns
        busy_then_ns = progress.busy_at_first_row_ns if progress.first_row_ns else 0
        finished = Finished(
            key=key,
            reason=ending.reason,
            message=ending.message,
            prompt_tokens=ending.prompt_tokens,
            cached_tokens=ending.cached_tokens,
            output_tokens=ending.output_tokens,
            preemptions=ending.preemptions,
            queued_ns=first_ns - progress.submitted_ns,
            running_ns=now_ns - first_ns,
            busy_share=self._meter.share_since(first_ns, busy_then_ns, now_ns)
            if progress.first_row_ns
            else 0.0,
        )
        self._frontends.finish(ending.seq_id, finished)

    def _abort_dropped(self) -> None:
        """Ends the sequences whose front end is gone."""
        for seq_id in self._frontends.dropped:
            self._end(self._core.abort(seq_id, FinishReason.ABORT))
        self._frontends.dropped.clear()

    # -- what the front ends know of this process --------------------------------------------------

    def _attached(self) -> Attached | None:
        if self._capacity is None or self._model is None:
            return None
        return Attached(
            PROTOCOL_VERSION,
            self._model,
            self._capacity.vocab_size,
            self._capacity.sequence_len_max,
        )

    def _readiness(self, now: float) -> str:
        """Why requests are not served; empty if they are."""
        if self._stopping_at is not None:
            return "the scheduler is shutting down"
        if self._executor.epoch is None:
            return "no executor is ready"
        silence_s = now - self._executor.heard_at
        if silence_s > self._stall_timeout_s:
            return f"the executor has been silent for {silence_s:.1f} s"
        # It may be heard and yet be stuck: only a step that ends is progress.
        step_s = now - self._progress_at
        if self._in_flight and step_s > self._stall_timeout_s:
            return f"the executor has not ended step {self._in_flight[0].step} for {step_s:.1f} s"
        return ""

    def _status(self, now: float) -> Status:
        stats, reason = self._core.stats(), self._readiness(now)
        return Status(
            ready=not reason,
            reason=reason,
            policy=self._core.policy.name,
            depth=self._core.config.depth,
            waiting=stats.waiting,
            running=stats.running,
            blocks_total=stats.blocks_total,
            blocks_free=stats.blocks_free,
            steps=stats.steps,
            tokens=stats.tokens,
            preemptions=stats.preemptions,
            busy_share=self._meter.recent_share(time.monotonic_ns()),
        )

    def _tell_if_changed(self, status: Status) -> None:
        if status.ready != self._told_ready:
            self._told_ready = status.ready
            log.info("ready" if status.ready else "not ready", reason=status.reason)
            self._frontends.broadcast(status)
