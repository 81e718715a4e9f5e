"""Runtime directories: private, unique, and swept once their instance is dead."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor_svc.instance import InstanceError, instance_dir
from svc_wire.rundir import RunDir


@pytest.fixture
def short() -> Iterator[Path]:
    """A temporary directory with a path that leaves room for a socket's name."""
    with tempfile.TemporaryDirectory(prefix="ts-") as path:
        yield Path(path)


@pytest.fixture
def parent(short: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short))
    return short / "twostroke"


def ignore(line: str) -> None:
    pass


def test_a_private_directory_is_gone_afterwards(parent: Path) -> None:
    with instance_dir(None, ignore) as path:
        assert path.parent == parent
        assert path.stat().st_mode & 0o777 == 0o700
        (path / "executor.sock").touch()
    assert list(parent.iterdir()) == []


def test_one_that_is_interrupted_while_it_is_made_is_gone(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def interrupted(run_dir: RunDir, role: str) -> int:
        made.append((run_dir.path.exists(), role))
        raise KeyboardInterrupt

    monkeypatch.setattr(RunDir, "lock", interrupted)
    with pytest.raises(KeyboardInterrupt):
        instance_dir(None, ignore).__enter__()
    assert made == [(True, "supervisor")]
    assert list(parent.iterdir()) == []


def test_instances_do_not_meet(parent: Path) -> None:
    with instance_dir(None, ignore) as one, instance_dir(None, ignore) as two:
        assert one != two
        assert one.exists(), "a second instance swept the first"


def test_what_a_killed_instance_left_is_swept(parent: Path) -> None:
    dead = parent / "serve-dead"
    dead.mkdir(parents=True)
    parent.chmod(0o700)
    (dead / "supervisor.lock").touch()
    (dead / "ring-1-x").touch()
    said: list[str] = []
    with instance_dir(None, said.append):
        assert not dead.exists()
    assert said == [f"removed what a dead instance left: {dead}"]


def test_an_instance_that_outlives_its_supervisor_is_left_alone(parent: Path) -> None:
    alive = parent / "serve-alive"
    parent.mkdir(mode=0o700)
    alive.mkdir(mode=0o700)
    (alive / "supervisor.lock").touch()
    lock = RunDir(alive).lock("executor")
    said: list[str] = []
    with instance_dir(None, said.append):
        assert alive.exists()
    assert said == []
    os.close(lock)


def test_a_given_directory_stays_without_leftovers(short: Path) -> None:
    given = short / "given"
    given.mkdir(mode=0o700)
    (given / "frontend.address").write_text("stale")
    (given / "notes").touch()
    said: list[str] = []
    with instance_dir(given, said.append) as path:
        assert not (path / "frontend.address").exists(), "a stale address must not be believed"
        assert said == [f"removed what a dead instance left in {given}: frontend.address"]
        (path / "scheduler.sock").touch()
    assert sorted(p.name for p in given.iterdir()) == ["notes", "supervisor.lock"]


def test_a_service_that_runs_there_already_keeps_its_files(short: Path) -> None:
    given = RunDir(short / "given")
    lock = given.lock("executor")
    (given.path / "executor.sock").touch()
    with instance_dir(given.path, ignore) as path:
        assert (path / "executor.sock").exists()
    assert (given.path / "executor.sock").exists()
    os.close(lock)


def test_one_supervisor_a_directory(short: Path) -> None:
    given = short / "given"
    other = instance_dir(given, ignore)
    with instance_dir(given, ignore), pytest.raises(InstanceError, match="another supervisor"):
        other.__enter__()
