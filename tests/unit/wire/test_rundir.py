"""Which directories are refused, and with which words."""

import errno
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from svc_wire.errors import RunDirError
from svc_wire.rundir import RunDir, default_run_dir, remove_socket


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """RunDir tightens the umask of the process; the test process gets its own back."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_it_is_made_private_with_its_parents(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "a" / "b")
    assert stat.S_IMODE(run_dir.path.stat().st_mode) == 0o700
    (run_dir.path / "file").touch()
    assert stat.S_IMODE((run_dir.path / "file").stat().st_mode) == 0o600


def test_it_can_be_used_again(tmp_path: Path) -> None:
    assert RunDir(tmp_path / "run").path == RunDir(tmp_path / "run").path


def test_its_endpoints_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_dir = RunDir(Path("run"))
    assert run_dir.executor_endpoint == f"ipc://{tmp_path}/run/executor.sock"
    assert run_dir.scheduler_endpoint == f"ipc://{tmp_path}/run/scheduler.sock"


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_directory_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "run"
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(RunDirError, match=f"mode {mode:04o}"):
        RunDir(path)


def test_a_directory_of_another_owner_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(RunDirError, match=f"has owner {owner}"):
        RunDir(path)


def test_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "run").symlink_to(tmp_path / "real")
    with pytest.raises(RunDirError, match="link"):
        RunDir(tmp_path / "run")


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with pytest.raises(RunDirError, match="cannot use"):
        RunDir(tmp_path / "run")


def test_a_path_too_long_for_a_socket_is_refused_before_it_is_made(tmp_path: Path) -> None:
    path = tmp_path / ("long" * 20)
    with pytest.raises(RunDirError, match="too long"):
        RunDir(path)
    assert not path.exists()


def test_the_second_of_a_role_is_refused(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    fd = run_dir.lock("executor")
    run_dir.lock("scheduler")
    with pytest.raises(RunDirError, match="another executor runs"):
        run_dir.lock("executor")
    os.close(fd)
    os.close(run_dir.lock("executor"))


def test_a_successor_asks_the_owner_to_leave(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    program = (
        "import sys, time; from pathlib import Path; from svc_wire.rundir import RunDir\n"
        "RunDir(Path(sys.argv[1])).lock('scheduler'); print(flush=True)\n"
        "try: time.sleep(60)\nexcept KeyboardInterrupt: sys.exit(3)\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program, str(run_dir.path)], stdout=subprocess.PIPE
    )
    with owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        os.close(run_dir.take_over("scheduler", 20.0))
        assert owner.wait(20) == 3
    os.close(run_dir.take_over("scheduler", 0.0))  # where nobody is, nobody is asked


def test_an_owner_that_does_not_leave_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *words: asked.append(words))
    run_dir = RunDir(tmp_path / "run")
    fd = run_dir.lock("scheduler")
    with pytest.raises(RunDirError, match="another scheduler runs"):
        run_dir.take_over("scheduler", 0.5)
    assert asked == [(os.getpid(), signal.SIGINT)], "once is enough"
    os.close(fd)


def test_a_lock_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    (run_dir.path / "executor.lock").mkdir()
    with pytest.raises(RunDirError, match=r"executor\.lock"):
        run_dir.lock("executor")


def test_a_lock_is_not_followed_to_another_file(tmp_path: Path) -> None:
    run_dir, other = RunDir(tmp_path / "run"), tmp_path / "other"
    other.write_text("of somebody else")
    (run_dir.path / "executor.lock").symlink_to(other)
    with pytest.raises(RunDirError, match="cannot make the lock"):
        run_dir.lock("executor")
    assert other.read_text() == "of somebody else"


def test_a_lock_that_cannot_be_written_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    run_dir = RunDir(tmp_path / "run")
    with monkeypatch.context() as full:
        full.setattr(os, "write", fail)
        with pytest.raises(RunDirError, match=r"cannot write the lock .*No space left"):
            run_dir.lock("executor")
    os.close(run_dir.lock("executor"))


def test_the_default_follows_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert default_run_dir() == Path("/run/user/7/twostroke")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert default_run_dir() == Path(f"/dev/shm/twostroke-{os.geteuid()}")


def test_a_socket_goes_with_its_binder(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    (run_dir.path / "executor.sock").touch()
    remove_socket(run_dir.executor_endpoint)
    remove_socket(run_dir.executor_endpoint)
    assert list(run_dir.path.iterdir()) == []
