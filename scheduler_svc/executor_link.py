"""The scheduler's link to the executor: handshake, frames, doorbells, loss.

Says Hello when the socket connects, and again if no Welcome comes for a while (the executor may be
loading its model). Whatever ends an epoch comes out as a Lost event: the peer's socket closed, a
step failed, a frame could not be read, or another Welcome came.
"""

from dataclasses import dataclass
from pathlib import Path

import structlog
import zmq
from zmq.utils.monitor import recv_monitor_message

from scheduler_svc.handover import KvState
from svc_wire.capacity import Capacity, ModelInfo
from svc_wire.errors import MessageError, RingError
from svc_wire.executor_link import (
    PROTOCOL_VERSION,
    Beat,
    Hello,
    PlanReady,
    Refused,
    StepDone,
    StepFailed,
    Welcome,
    to_executor,
    to_scheduler,
)
from svc_wire.frames import PlanFrame, StepResult
from svc_wire.ring import SchedulerRing

HELLO_AGAIN_S = 10.0
RECONNECT_MS = 50
RECONNECT_MAX_MS = 200
"""While there is no executor, streams stand still: its successor should be found soon."""

log = structlog.get_logger(service="scheduler")


@dataclass(frozen=True, slots=True)
class Ready:
    """An executor serves this scheduler from now on."""

    epoch: int
    capacity: Capacity
    model: ModelInfo
    kv: KvState
    """The state in which it keeps KV memory."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The epoch is over."""

    reason: str


Event = Ready | Lost


class ExecutorLink:
    """One executor, which may come and go. Used by one thread; times are seconds, monotonic."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.IMMEDIATE, 1)
        self.socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
        # Before the handshake has succeeded there is no peer that a message could go to.
        self.monitor = self.socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        )
        self.socket.connect(endpoint)
        self._ring: SchedulerRing | None = None
        self._epoch = 0
        self._kv_found: KvState | None = None
        self._connected = False
        self._hello_at = 0.0
        self.heard_at = 0.0
        """When the executor last said anything or completed a step."""
        self.epochs_lost = 0

    @property
    def epoch(self) -> int | None:
        """The epoch in which plans can be published; None: no executor."""
        return self._epoch if self._ring else None

    # -- messages ----------------------------------------------------------------------------------

    def receive(self, now: float) -> list[Event]:
        """Takes in whatever lies ready on both sockets. Never blocks."""
        events: list[Event] = []
        while self.monitor.poll(0):
            events += self._on_monitor(recv_monitor_message(self.monitor)["event"], now)
        while self.socket.poll(0):
            self.heard_at = now
            try:
                events += self._on_message(to_scheduler.decode(self.socket.recv()))
            except MessageError as error:
                log.warning("executor sent nonsense", error=str(error))
        if self._connected and self._ring is None and now - self._hello_at > HELLO_AGAIN_S:
            self._hello(now)
        return events

    def _on_monitor(self, event: int, now: float) -> list[Event]:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._connected = True
            self._hello(now)
            return []
        self._connected = False
        return self.give_up("the executor is gone")

    def _hello(self, now: float) -> None:
        self._hello_at = now
        self._send(Hello(PROTOCOL_VERSION, self._epoch))

    def _on_message(self, message: Welcome | Refused | StepDone | StepFailed | Beat) -> list[Event]:
        match message:
            case Welcome():
                return self._on_welcome(message)
            case Refused():
                log.error("the executor refuses this scheduler", reason=message.reason)
            case StepFailed(epoch=epoch) if epoch == self.epoch:
                return self.begin_anew(f"step {message.step} failed: {message.reason}")
        return []

    def _on_welcome(self, welcome: Welcome) -> list[Event]:
        events = self.give_up("the executor began another epoch")
        if welcome.protocol != PROTOCOL_VERSION:
            log.error("the executor speaks another protocol", version=welcome.protocol)
            return events
        try:
            self._ring = SchedulerRing.attach(Path(welcome.ring_path), welcome.capacity)
        except RingError as error:
            log.error("cannot map the executor's frames", error=str(error))
            return events
        self._epoch = welcome.epoch
        kv = self._kv_found = KvState(self._ring.path.name, welcome.kv_epoch, welcome.kv_step)
        return [*events, Ready(welcome.epoch, welcome.capacity, welcome.model, kv)]

    def begin_anew(self, reason: str) -> list[Event]:
        """Ends the epoch and asks for another one at once."""
        self._hello_at = float("-inf")
        return self.give_up(reason)

    def give_up(self, reason: str) -> list[Event]:
        """Ends the epoch, if there is one."""
        if self._ring is None:
            return []
        self._ring = None
        self.epochs_lost += 1
        return [Lost(reason)]

    def _send(self, message: Hello | PlanReady | Beat) -> None:
        try:
            self.socket.send(to_executor.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            log.debug("the executor's socket is not ready")

    def beat(self, step: int) -> None:
        """Says that this side is alive."""
        if self._connected:
            self._send(Beat(self._epoch if self._ring else 0, step))

    def kv_after(self, step: int) -> KvState:
        """The state of KV memory after `step` of this epoch; step 0: as it was found."""
        assert self._ring is not None
        assert self._kv_found is not None
        return KvState(self._ring.path.name, self._epoch, step) if step else self._kv_found

    # -- steps -------------------------------------------------------------------------------------

    def frame(self, step: int) -> PlanFrame:
        """Where the plan of `step` goes."""
        assert self._ring is not None
        return self._ring.plan_frame(step)

    def publish(self, step: int) -> None:
        """Hands over the sealed plan of `step`."""
        assert self._ring is not None
        if self._ring.publish_plan(self._epoch, step):
            self._send(PlanReady(self._epoch, step))

    def is_complete(self, step: int) -> bool:
        """Whether the result of `step` has been published."""
        return self._ring is not None and self._ring.last_result() >= (self._epoch, step)

    def collect(self, step: int, rows: int) -> StepResult:
        """The result of a complete step. Raises FrameError."""
        assert self._ring is not None
        return self._ring.result_frame(step).read(epoch=self._epoch, step=step, rows=rows)

    def set_waiting(self, waiting: bool) -> None:
        """Says whether this side blocks on its sockets, so that it needs the doorbell."""
        if self._ring is not None:
            self._ring.set_waiting(waiting)

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(0)
