"""Bugs to plant between the processes, each with the test that must find it.

They are of the kind that no run of the whole shows but one in a thousand: what is done in the wrong
order, or is not said of something that was cut off.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServiceBug:
    """A change of one place in one file."""

    name: str
    file: str
    right: str
    """Stands exactly once in the file."""
    wrong: str
    test: str


SERVICE_BUGS = [
    ServiceBug(
        "who sleeps is looked up before the plan is there",
        "svc_wire/ring.py",
        "        self._plan_word.value = word(epoch, step)\n"
        "        _fence()\n"
        "        return self._executor_waiting.value != 0",
        "        sleeps = self._executor_waiting.value != 0\n"
        "        self._plan_word.value = word(epoch, step)\n"
        "        _fence()\n"
        "        return sleeps",
        "tests/unit/wire/test_ring.py::test_who_falls_asleep_during_a_hand_over_is_rung_for",
    ),
    ServiceBug(
        "a ring is removed before it is known to be an orphan",
        "svc_wire/ring.py",
        "            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "            path.unlink(missing_ok=True)\n",
        "            path.unlink(missing_ok=True)\n"
        "            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "tests/unit/wire/test_ring.py::test_a_ring_is_swept_once_nobody_owns_it",
    ),
    ServiceBug(
        "steps that were cut off leave KV memory as if they had not begun",
        "executor_svc/session.py",
        "        if self.in_flight:\n            return VOID\n",
        "",
        "tests/unit/executor/test_session.py::test_steps_that_are_cut_off_leave_nothing_known",
    ),
    ServiceBug(
        "what is under way to the old owner of a stream comes to the new one, too",
        "scheduler_svc/requests.py",
        "        self.deliver()  # or",
        "        # or",
        "tests/unit/scheduler/test_taking_over.py::test_what_is_under_way_does_not_come_twice",
    ),
]
