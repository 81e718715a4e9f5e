"""The link to the scheduler: one socket an attachment, opened anew whenever the scheduler is lost.

    CONNECTING ──► ATTACHING ──► LOADING ──► ATTACHED ──► lost: socket closed, from the beginning
       connected      Attached      tokenizer read

A new socket is a new front end to the scheduler, so nothing of an older attachment can arrive late,
on either side. The scheduler counts as lost when its socket closes (it died: seen at once), when it
does not know us (it was restarted), or when it leaves PINGS_UNANSWERED_MAX pings unanswered (it is
stuck). Pings, not seconds: after this process itself was stopped, nothing is concluded from
silence.
"""

import asyncio
import struct
from contextlib import suppress
from enum import Enum, auto
from typing import Protocol, cast

import structlog
import zmq
import zmq.asyncio

from svc_wire.errors import MessageError
from svc_wire.frontend_link import (
    PROTOCOL_VERSION,
    Attach,
    Attached,
    Detach,
    Outputs,
    Ping,
    PolicyInForce,
    Rejected,
    Status,
    ToFrontend,
    ToScheduler,
    Unknown,
    to_frontend,
    to_scheduler,
)

BEAT_S = 1.0
PINGS_UNANSWERED_MAX = 4
REOPEN_S = 0.1
DETACH_LINGER_MS = 500
MESSAGES_MAX = 100_000
"""Messages that may queue in either direction; a stop of some seconds fills no more than that."""

log = structlog.get_logger(service="frontend")


class LinkEvents(Protocol):
    """Who is told what the link brings."""

    async def attached(self, attached: Attached) -> None:
        """May take long; until it returns, the link is not up and no other call comes."""

    def status(self, status: Status) -> None: ...

    def outputs(self, outputs: Outputs) -> None: ...

    def rejected(self, rejected: Rejected) -> None: ...

    def policy(self, policy: PolicyInForce) -> None: ...

    def lost(self, reason: str) -> None:
        """An attachment has ended. Not called for attempts that did not get so far."""


class LinkDown(Exception):
    """The message cannot be sent now."""


class _Lost(Exception):
    """Ends an attachment, with the reason."""


class _State(Enum):
    CONNECTING = auto()
    ATTACHING = auto()
    LOADING = auto()
    ATTACHED = auto()


class SchedulerLink:
    def __init__(self, endpoint: str, name: str, events: LinkEvents) -> None:
        """`name` is what the scheduler's log calls us."""
        self._endpoint = endpoint
        self._name = name
        self._events = events
        self._socket: zmq.asyncio.Socket | None = None
        self._state = _State.CONNECTING
        self._pings_unanswered = 0
        self._told: set[str] = set()

    @property
    def is_up(self) -> bool:
        return self._state is _State.ATTACHED

    async def run(self) -> None:
        """Attaches, again and again, until it is cancelled. Raises what the events raise."""
        context = zmq.asyncio.Context()
        try:
            while True:
                self._tell("waiting for the scheduler", endpoint=self._endpoint)
                await self._attachment(context)
                await asyncio.sleep(REOPEN_S)
        finally:
            context.destroy(linger=DETACH_LINGER_MS)

    def send(self, message: ToScheduler) -> None:
        """Never blocks. Raises LinkDown."""
        if self._socket is None:
            raise LinkDown("not connected")
        # With DONTWAIT the socket answers at once, in a future that is already done.
        sent = self._socket.send(to_scheduler.encode(message), zmq.DONTWAIT)
        try:
            cast("asyncio.Future[None]", sent).result()
        except zmq.Again as error:
            raise LinkDown("too many messages wait to be sent") from error

    # -- one attachment ----------------------------------------------------------------------------

    async def _attachment(self, context: zmq.asyncio.Context) -> None:
        """Returns when it has ended."""
        self._state = _State.CONNECTING
        self._pings_unanswered = 0
        socket = self._socket = context.socket(zmq.DEALER)
        socket.set_hwm(MESSAGES_MAX)
        socket.setsockopt(zmq.LINGER, DETACH_LINGER_MS)
        monitor = _monitor(context, socket)
        lost = ""
        try:
            socket.connect(self._endpoint)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch(monitor))
                tasks.create_task(self._receive(socket))
                tasks.create_task(self._beat())
        except* _Lost as group:
            lost = str(group.exceptions[0])
        finally:
            self._leave(socket, monitor, lost)

    def _leave(self, socket: zmq.asyncio.Socket, monitor: zmq.asyncio.Socket, lost: str) -> None:
        """`lost` is why the scheduler is lost; empty if it is us who go."""
        was_up, self._state = self.is_up, _State.CONNECTING
        if was_up:
            # A scheduler that is stuck reads it later, and lets go of our requests.
            with suppress(LinkDown):
                self.send(Detach())
        self._socket = None
        socket.disable_monitor()
        monitor.close(0)
        socket.close()
        if was_up and lost:
            log.warning("the scheduler is lost", reason=lost)
            self._events.lost(lost)
        elif lost:
            self._tell("cannot attach to the scheduler", reason=lost)

    async def _watch(self, monitor: zmq.asyncio.Socket) -> None:
        while True:
            event, _address = await monitor.recv_multipart()
            number, _value = struct.unpack("=HI", event)
            if number == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._state = _State.ATTACHING
                self.send(Attach(PROTOCOL_VERSION, self._name))
            else:
                # What it sent before it went is still to be read: ends, with some luck.
                await asyncio.sleep(REOPEN_S)
                raise _Lost("its socket closed")

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            match self._state:
                case _State.CONNECTING:
                    pass
                case _State.ATTACHING:
                    # It answers once it knows the model.
                    self.send(Attach(PROTOCOL_VERSION, self._name))
                case _State.LOADING:
                    self.send(Ping())
                case _State.ATTACHED:
                    if self._pings_unanswered >= PINGS_UNANSWERED_MAX:
                        raise _Lost(f"it left {self._pings_unanswered} pings unanswered")
                    self._pings_unanswered += 1
                    self.send(Ping())

    async def _receive(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            data = await socket.recv()
            try:
                message = to_frontend.decode(data)
            except MessageError as error:
                raise _Lost(f"it sends nonsense: {error}") from error
            self._pings_unanswered = 0
            await self._handle(message)

    async def _handle(self, message: ToFrontend) -> None:
        match message:
            case Outputs():
                self._events.outputs(message)
            case Rejected():
                self._events.rejected(message)
            case PolicyInForce():
                self._events.policy(message)
            case Status():
                if self.is_up:
                    self._events.status(message)
                else:  # its answer to an Attach while it does not know the model
                    self._tell("waiting for the scheduler to be ready", reason=message.reason)
            case Attached():
                await self._attach(message)
            case Unknown():
                raise _Lost("it does not know this front end: it was restarted, or we were silent")

    async def _attach(self, attached: Attached) -> None:
        if attached.protocol != PROTOCOL_VERSION:
            raise _Lost(
                f"it speaks version {attached.protocol} of the protocol, we {PROTOCOL_VERSION}"
            )
        self._state = _State.LOADING
        await self._events.attached(attached)
        self._state = _State.ATTACHED
        log.info("attached to the scheduler", model=attached.model.name)
        self._told.clear()

    def _tell(self, event: str, **facts: str) -> None:
        """Logs what we wait for, once until it is there."""
        told = f"{event} {facts}"
        if told not in self._told:
            self._told.add(told)
            log.info(event, **facts)


def _monitor(context: zmq.asyncio.Context, socket: zmq.asyncio.Socket) -> zmq.asyncio.Socket:
    """A socket that tells when the connection of `socket` comes and goes."""
    endpoint = f"inproc://monitor-{id(socket)}"
    socket.monitor(endpoint, zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
    monitor = context.socket(zmq.PAIR)
    monitor.connect(endpoint)
    return monitor
