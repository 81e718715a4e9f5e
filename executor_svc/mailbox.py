"""What reaches the executor from outside its frames: messages of schedulers, and the wish to stop.

Nothing here blocks but `block`. A message to a peer that is gone is dropped by the socket, which is
what should happen to it.
"""

import math
import os

import structlog
import zmq

from svc_wire.errors import MessageError
from svc_wire.executor_link import ToExecutor, ToScheduler, to_executor, to_scheduler
from svc_wire.rundir import remove_socket

log = structlog.get_logger(service="executor")


class Mailbox:
    """The executor's ROUTER socket. `wake` and `stop` may be called from anywhere, even from signal
    handlers; the rest belongs to one thread."""

    def __init__(self, endpoint: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(endpoint)
        self._endpoint = endpoint
        self._event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._event_fd, zmq.POLLIN)
        self.stopping = False

    def stop(self) -> None:
        """Asks the process to end after the running step."""
        self.stopping = True
        self.wake()

    def wake(self) -> None:
        """Makes the present or the next `block` return."""
        os.eventfd_write(self._event_fd, 1)

    def block(self, timeout_s: float) -> None:
        """Returns when a message is there, after `wake`, or when the time is up."""
        ready = dict(self._poller.poll(math.ceil(max(0.0, timeout_s) * 1000)))
        if self._event_fd in ready:
            os.eventfd_read(self._event_fd)

    def receive(self) -> list[tuple[bytes, ToExecutor]]:
        """Whatever lies ready: (peer, message). Never blocks."""
        received = []
        while self._socket.poll(0):
            peer, *parts = self._socket.recv_multipart()
            try:
                received.append((peer, to_executor.decode(b"".join(parts))))
            except MessageError as error:
                log.warning("a peer sent nonsense", error=str(error))
        return received

    def send(self, peer: bytes, message: ToScheduler) -> None:
        try:
            self._socket.send_multipart((peer, to_scheduler.encode(message)), zmq.NOBLOCK)
        except zmq.Again:
            log.debug("a peer does not read", message=type(message).__name__)

    def close(self) -> None:
        self._socket.close()
        self._context.term()
        remove_socket(self._endpoint)
        os.close(self._event_fd)
