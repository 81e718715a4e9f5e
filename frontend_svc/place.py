"""A front end's place in the runtime directory: its name, and what others see of it there.

frontend.lock, frontend-2.lock, ...   each is held by one front end, and is its pulse; it says
                                      the pid and, once that listens, whether it serves
frontend.address                      where they listen; the last one to go removes it
"""

import asyncio
import os

from svc_shell.listening import AddressError
from svc_shell.presence import ADDRESS_FILE, FRONTENDS_MAX, SERVING, WAITING, is_held, service_name
from svc_shell.pulse import PULSE_S, beat
from svc_wire.errors import LockHeld
from svc_wire.rundir import RunDir

LEAVE_S = 10.0
"""A front end that is replaced has so long to give up its name."""


class Place:
    """Of one front end, from `take` or `take_over` to `leave`."""

    def __init__(self, run_dir: RunDir, name: str) -> None:
        """An empty name stands for the first that is free."""
        self._run_dir = run_dir
        self._name = name
        self._lock: int | None = None
        self._address_file = run_dir.path / ADDRESS_FILE

    def take(self) -> None:
        """Raises RunDirError."""
        if self._name:
            self._lock = self._run_dir.lock(self._name)
            return
        for number in range(1, FRONTENDS_MAX + 1):
            try:
                self._lock = self._run_dir.lock(service_name("frontend", number))
            except LockHeld:
                continue
            return
        raise LockHeld(f"{FRONTENDS_MAX} front ends run in {self._run_dir.path}")

    async def take_over(self) -> None:
        """As `take`, from a front end that is asked to give it up. Raises RunDirError."""
        name = self._name or service_name("frontend", 1)
        self._lock = await asyncio.to_thread(self._run_dir.take_over, name, LEAVE_S)

    def publish(self, address: str) -> None:
        """Tells where it listens, all at once. Raises AddressError."""
        draft = self._address_file.with_name(f"{ADDRESS_FILE}.{os.getpid()}")
        try:
            draft.write_text(f"{address}\n")
            draft.replace(self._address_file)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise AddressError(f"cannot write {self._address_file}: {error.strerror}") from error

    def show(self, *, serves: bool) -> None:
        """Tells whether it serves; nothing any more, once it has left."""
        if self._lock is not None:
            state = SERVING if serves else WAITING
            os.pwrite(self._lock, f"{os.getpid()}\n{state}\n".encode(), 0)

    async def keep_beating(self) -> None:
        """Shows that the event loop turns (see svc_shell/pulse.py), until it has left."""
        while self._lock is not None:
            beat(self._lock)
            await asyncio.sleep(PULSE_S)

    def leave(self) -> None:
        """Gives up the name, and the address if nobody else listens there. May be called twice."""
        if self._lock is None:
            return
        os.close(self._lock)
        self._lock = None
        if not any(map(is_held, self._run_dir.path.glob("frontend*.lock"))):
            self._address_file.unlink(missing_ok=True)
