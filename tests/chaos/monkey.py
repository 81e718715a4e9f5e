"""What can go wrong with real processes, done to them on purpose.

Each fault acts on a running instance and returns when it is over; healing is for the instance.
Nothing here may make the instance wrong without its knowing: memory is damaged where a checksum
guards it, never behind the check.
"""

import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from tests.chaos import damage
from tests.chaos.clock import Clock
from tests.support.serve import ROLES, Serve

BEHIND = ("executor", "scheduler")


class Monkey:
    """`shm` is a small tmpfs of the instance's own, `clock` its wall clock, if there are such."""

    def __init__(
        self, serve: Serve, chance: random.Random, shm: Path | None, clock: Clock | None
    ) -> None:
        self._serve = serve
        self._chance = chance
        self._shm = shm
        self.faults: list[Callable[[], None]] = [
            self.kill_one,
            self.kill_both,
            self.stop_for_a_while,
            self.slow_down,
            self.restart_on_order,
            self.tear_frames,
            self.drop_doorbells,
        ]
        if shm is not None:
            self.faults.append(self.fill_tmpfs)
        if clock is not None:
            self._clock = clock
            self.faults.append(self.jump_clock)

    def kill_one(self) -> None:
        """Clients of a front end that dies bring what they have to the next one."""
        self._signal(self._chance.choice(ROLES), signal.SIGKILL)

    def kill_both(self) -> None:
        for role in BEHIND:
            self._signal(role, signal.SIGKILL)

    def stop_for_a_while(self) -> None:
        """Longer than the stall timeout, shorter than the hang timeout."""
        role = self._chance.choice(ROLES)
        self._signal(role, signal.SIGSTOP)
        time.sleep(self._chance.uniform(0.1, 2.0))
        self._signal(role, signal.SIGCONT)

    def slow_down(self) -> None:
        """A service gets a tenth of its time."""
        role = self._chance.choice(ROLES)
        for _ in range(10):
            self._signal(role, signal.SIGSTOP)
            time.sleep(0.09)
            self._signal(role, signal.SIGCONT)
            time.sleep(0.01)

    def restart_on_order(self) -> None:
        policy = self._chance.choice(["fcfs", "priority"])
        words = self._chance.choice([["scheduler", "--policy", policy], ["executor"], ["frontend"]])
        self._serve.command("restart", *words)

    def tear_frames(self) -> None:
        damage.tear_frames(self._serve.run_dirs, self._chance)

    def drop_doorbells(self) -> None:
        damage.drop_doorbells(self._serve.run_dirs)

    def fill_tmpfs(self) -> None:
        """The executor dies, and its successor finds no room for its frames."""
        assert self._shm is not None
        filler = self._shm / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(bytes(1 << 16)):
                pass
        self._signal("executor", signal.SIGKILL)
        time.sleep(1.5)
        filler.unlink()

    def jump_clock(self) -> None:
        """The machine's time is set, by a second or by years, forth or back."""
        size_s = int(10 ** self._chance.uniform(0, 8))
        self._clock.jump_to(self._chance.choice([-size_s, size_s]))

    def _signal(self, role: str, signum: signal.Signals) -> None:
        with suppress(psutil.NoSuchProcess):
            if process := self._serve.find_services().get(role):
                process.send_signal(signum)
