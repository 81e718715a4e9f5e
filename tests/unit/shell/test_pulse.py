"""Progress that others see: files that are touched."""

import os
from pathlib import Path

from svc_shell.pulse import PulseWatch, beat


def test_looks_without_a_pulse_are_counted_after_the_first_pulse(tmp_path: Path) -> None:
    path = tmp_path / "executor.lock"
    path.touch()
    os.utime(path, ns=(1, 1))
    watch = PulseWatch(path)
    for _ in range(5):
        watch.look()
    assert watch.looks_without == 0, "who loads a model for minutes has not shown any pulse yet"
    beat(path)
    watch.look()
    for count in range(1, 4):
        watch.look()
        assert watch.looks_without == count
    os.utime(path, ns=(2, 2))  # the clock went back; a pulse all the same
    watch.look()
    assert watch.looks_without == 0


def test_a_pulse_through_a_descriptor_and_a_file_that_goes(tmp_path: Path) -> None:
    path = tmp_path / "scheduler.lock"
    watch = PulseWatch(path)
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.utime(path, ns=(1, 1))
    beat(fd)
    os.close(fd)
    watch.look()
    path.unlink()
    watch.look()
    watch.look()
    assert watch.looks_without == 1
