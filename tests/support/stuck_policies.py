"""Policies that do not answer when a request of the tenant `stuck` comes, or not as they should."""

import time
from typing import ClassVar

from scheduler_svc.core.policies import Fcfs, Key, LoadView, RequestView


class Loop(Fcfs):
    """Runs in a circle."""

    name: ClassVar[str] = "loop"

    def key(self, request: RequestView) -> Key:
        while request.tenant == "stuck":
            pass
        return super().key(request)


class Sleeper(Fcfs):
    """Sleeps, and goes on sleeping whatever wakes it."""

    name: ClassVar[str] = "sleeper"

    def key(self, request: RequestView) -> Key:
        while request.tenant == "stuck":
            try:
                time.sleep(3600)
            except Exception:  # noqa: BLE001 - as careless as a policy may be
                continue
        return super().key(request)


class Rude(Fcfs):
    """Answers what cannot be sent, raises what cannot be shown, and loses its name meanwhile."""

    name: ClassVar[str] = "rude"

    def refuse(self, request: RequestView, load: LoadView) -> str | None:
        Rude.name = "\udc80"
        if request.tenant == "stuck":
            raise Unspeakable
        return None


class Unspeakable(BaseException):
    """Has no words for itself."""

    def __repr__(self) -> str:
        raise KeyboardInterrupt


class Slow(Fcfs):
    """Answers as it should, but takes its time whenever a prompt is read."""

    name: ClassVar[str] = "slow"

    def piece(self, request: RequestView, wanted: int, room: int) -> int:
        time.sleep(0.02)
        return super().piece(request, wanted, room)
