"""The scheduler's process: one loop that settles results, plans steps and serves the front ends.

The critical path comes first: when a result is there, the core commits it and plans the next step,
the plan is published, and only then do the front ends get their tokens. Idle, it wakes once a
second.

Nothing is lost with this process: the front ends keep their live requests and bring them to its
successor, and the executor stays. So it may leave at any moment, and need not end anybody.
"""

import time
from collections.abc import Callable
from functools import partial

import structlog
import zmq

from scheduler_svc import handover
from scheduler_svc.condition import Condition
from scheduler_svc.core import Policy, Question, Scheduler, SchedulerConfig
from scheduler_svc.executor_link import ExecutorLink, Lost, Ready
from scheduler_svc.frontends import Frontends
from scheduler_svc.meter import Meter
from scheduler_svc.pause import Pause
from scheduler_svc.policy_budget import PolicyBudget
from scheduler_svc.policy_desk import PolicyDesk
from scheduler_svc.requests import Requests
from scheduler_svc.steps import Steps
from svc_wire.frontend_link import Abort, AskPolicy, Submit
from svc_wire.rundir import RunDir

TICK_S = 1.0
"""Heartbeats, sweeps and looks at the clock happen so often."""

HAND_OVER_S = 3.0
"""So long a scheduler that leaves waits for its steps; longer ones cost their KV. Front ends, whose
pings are not answered meanwhile, have more patience."""

log = structlog.get_logger(service="scheduler")


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
        resume_grace_s: float,
        pulse: Callable[[], object],
    ) -> None:
        """`pulse` shows that the loop turns; see svc_shell/pulse.py."""
        self._run_dir = run_dir.path
        self._drain_timeout_s = drain_timeout_s
        self._pulse = pulse
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context = context
        self._core = Scheduler(config, policy, Question(time.monotonic))
        self._executor = ExecutorLink(context, run_dir.executor_endpoint)
        self._frontends = Frontends(context, run_dir.scheduler_endpoint)
        meter = Meter()
        self._requests = Requests(self._core, self._frontends, meter, resume_grace_s)
        self._steps = Steps(self._core, self._executor, self._requests, meter)
        self._condition = Condition(self._core, self._executor, self._steps, meter, stall_timeout_s)
        self._policy_desk = PolicyDesk(self._core)
        self._policy_budget = PolicyBudget(self._core, meter)
        self._pause = Pause(self._executor, self._frontends.socket)
        self._stopping_at: float | None = None
        self._is_leaving = self._is_hurried = False
        self._next_tick = 0.0

    @property
    def question(self) -> Question:
        """What the policy is being asked; see `watchdog`."""
        return self._core.question

    def stop(self) -> None:
        """No new requests from now on; ends when the last is done or the drain timeout is over.

        A second call is `leave`.
        """
        if self._stopping_at is not None:
            self.leave()
        else:
            self._stopping_at = time.monotonic() + self._drain_timeout_s
            self._condition.is_draining = True

    def leave(self) -> None:
        """Ends with the steps in flight; a successor goes on with the requests.

        A second call does not wait for the steps.
        """
        self._is_hurried = self._is_leaving
        self._is_leaving = True

    def hurry(self) -> None:
        """Ends at once."""
        self._is_hurried = self._is_leaving = True

    def run(self) -> None:
        log.info("waiting for the executor")
        while not self._is_done():
            self._pause.wait(self._steps.oldest, max(0.0, self._next_tick - time.monotonic()))
            self._turn()
        log.info("leaving", requests=len(self._requests))
        if self._is_leaving or self._requests:  # else it was stopped, and nobody waits for another
            self._hand_over()
        self._executor.close()
        self._frontends.close()
        self._context.term()
        log.info("stopped")

    def _is_done(self) -> bool:
        if self._is_leaving or self._stopping_at is None:
            return self._is_leaving
        return not self._requests or time.monotonic() >= self._stopping_at

    def _hand_over(self) -> None:
        """Waits for the steps in flight, and leaves a successor what KV memory holds after them."""
        deadline = time.monotonic() + HAND_OVER_S
        while self._steps.oldest and not self._is_hurried:
            if (left_s := deadline - time.monotonic()) <= 0:
                break
            self._pause.wait(self._steps.oldest, left_s)
            outputs, events = self._steps.settle(plans=False)
            self._requests.committed(outputs)
            for event in [*events, *self._executor.receive(time.monotonic())]:
                self._on_executor(event)
        self._requests.deliver()
        self._frontends.flush()
        if self._executor.epoch is not None and not self._steps.oldest:
            state = self._executor.kv_after(self._core.next_step - 1)
            handover.leave(self._run_dir, state, self._core.hand_over())

    def _turn(self) -> None:
        """One pass: results and plans first, then everything else."""
        self._core.question.begin_turn()
        outputs, events = self._steps.settle()
        self._requests.committed(outputs)
        now = time.monotonic()
        for event in [*events, *self._executor.receive(now)]:
            self._on_executor(event)
        self._serve(now)
        self._steps.plan()
        self._requests.deliver()
        self._requests.orphan(now)
        self._frontends.flush()
        self._core.tidy()
        self._condition.tell_if_changed(now, self._frontends)
        if now >= self._next_tick:
            self._tick(now)

    def _serve(self, now: float) -> None:
        """What the front ends ask for."""
        status = partial(self._condition.status, now)
        for frontend, message in self._frontends.receive(now, self._condition.attached, status):
            match message:
                case Submit():
                    is_draining = self._condition.is_draining
                    self._requests.submit(frontend, message, is_draining=is_draining)
                case Abort():
                    self._requests.abort(frontend, message)
                case AskPolicy():
                    self._frontends.tell_policy(frontend, self._policy_desk.answer(message))

    def _on_executor(self, event: Ready | Lost) -> None:
        match event:
            case Lost(reason=reason):
                log.warning("executor lost", reason=reason)
                self._steps.forget()
                endings = self._core.executor_lost()
            case Ready(epoch=epoch, capacity=capacity, model=model):
                log.info("executor ready", epoch=epoch, model=model.name, device=model.device)
                if self._condition.set_served(event):
                    # They come back with their requests, if those can go on with it.
                    self._frontends.drop_all("something else is served now")
                    self._requests.abort_dropped()
                kv = handover.take(self._run_dir, event.kv, capacity.num_blocks)
                if kv is not None:
                    log.info("going on with the KV of the scheduler before", blocks=len(kv))
                endings = self._core.attach(capacity, epoch, kv)
        self._requests.end(endings)
        now = time.monotonic()
        if (attached := self._condition.attached) is not None:
            self._frontends.attach_early(now, attached, self._condition.status(now))
        self._condition.tell_if_changed(now, self._frontends)

    def _tick(self, now: float) -> None:
        self._next_tick = now + TICK_S
        self._pulse()
        self._frontends.sweep(now)
        self._executor.beat(self._steps.newest)
        self._policy_budget.look(now, self._steps.computing_s(now))
        self._policy_desk.tell_faults()
