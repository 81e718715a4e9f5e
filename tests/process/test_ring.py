"""The shared file and its directory across real processes: handing over, kill -9, full tmpfs."""

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from svc_wire.errors import RunDirError
from svc_wire.ring import ExecutorRing, SchedulerRing, ring_bytes, sweep_rings
from svc_wire.rundir import RunDir
from tests.support.plans import SMALL, RowSpec, fill_plan

pytestmark = pytest.mark.process

OWNER = """
import sys
from pathlib import Path
from svc_wire.errors import WireError
from svc_wire.ring import ExecutorRing, sweep_rings
from svc_wire.rundir import RunDir
from tests.support.plans import SMALL, random_result
import random

try:
    run_dir = RunDir(Path(sys.argv[1]))
    lock = run_dir.lock("executor") if sys.argv[2] == "locked" else None
    swept = sweep_rings(run_dir.path)
    ring = ExecutorRing.create(run_dir.path, SMALL)
except WireError as error:
    sys.exit(f"{type(error).__name__}: {error}")
print(ring.path, len(swept), flush=True)
for line in sys.stdin:
    epoch, step = map(int, line.split())
    while ring.last_plan() != (epoch, step):
        pass
    plan = ring.plan_frame(step).read(epoch=epoch, step=step)
    result = random_result(random.Random(step), SMALL, plan.rows, epoch=epoch, step=step)
    ring.result_frame(step).write(result)
    ring.publish_result(epoch, step)
    print("done", flush=True)
ring.unlink()
"""


class Owner:
    """A process that owns a ring, and says where."""

    def __init__(self, run_dir: Path, *, locked: bool = True) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(run_dir), "locked" if locked else "unlocked"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout
        path, _, swept = self.process.stdout.readline().rstrip().rpartition(" ")
        self.path, self.swept = Path(path), int(swept or 0)

    def ask(self, epoch: int, step: int) -> None:
        """Has it answer one plan that is or will be published; returns at once."""
        assert self.process.stdin
        self.process.stdin.write(f"{epoch} {step}\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=10)

    def finish(self) -> tuple[int, str]:
        """Closes its stdin; returns its exit code and standard error."""
        _, stderr = self.process.communicate(timeout=30)
        return self.process.returncode, stderr


@contextmanager
def owner(run_dir: Path, *, locked: bool = True) -> Iterator[Owner]:
    started = Owner(run_dir, locked=locked)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.communicate(timeout=10)


def test_plans_and_results_pass_between_processes(run_dir: Path) -> None:
    with owner(run_dir) as executor:
        ring = SchedulerRing.attach(executor.path, SMALL)
        for step in range(1, 10):
            executor.ask(1, step)
            rng = random.Random(step)
            fill_plan(ring.plan_frame(step), [RowSpec(0, 0, 3, 1)], rng, epoch=1, step=step)
            ring.publish_plan(1, step)
            assert executor.process.stdout
            assert executor.process.stdout.readline() == "done\n"
            assert ring.last_result() == (1, step)
            assert len(ring.result_frame(step).read(epoch=1, step=step, rows=1).row_token) == 1
        assert executor.finish() == (0, "")
        assert not executor.path.exists()


def test_the_ring_of_a_killed_owner_is_swept_at_the_next_start(run_dir: Path) -> None:
    with owner(run_dir) as first:
        first.kill()
        assert first.path.exists()
        with owner(run_dir) as second:
            assert second.swept == 1
            assert [*run_dir.glob("ring-*")] == [second.path]


def test_a_live_ring_beside_a_dead_one_stays(run_dir: Path) -> None:
    with owner(run_dir, locked=False) as live, owner(run_dir, locked=False) as dead:
        dead.kill()
        assert sweep_rings(run_dir) == [dead.path]
        SchedulerRing.attach(live.path, SMALL)


def test_a_killed_owner_does_not_disturb_who_has_mapped_its_ring(run_dir: Path) -> None:
    with owner(run_dir) as executor:
        ring = SchedulerRing.attach(executor.path, SMALL)
        executor.kill()
        sweep_rings(run_dir)
        fill_plan(ring.plan_frame(1), [RowSpec(0, 0, 3, 1)], random.Random(0), epoch=1, step=1)
        ring.publish_plan(1, 1)
        assert ring.last_result() == (0, 0)


def test_the_second_executor_of_a_run_dir_is_refused_and_disturbs_nothing(run_dir: Path) -> None:
    with owner(run_dir) as first, owner(run_dir) as second:
        code, stderr = second.finish()
        assert code == 1
        assert stderr.startswith("LockHeld: another executor runs in")
        assert "--run-dir" in stderr
        assert [*run_dir.glob("ring-*")] == [first.path]


def test_a_lock_goes_with_its_killed_holder(run_dir: Path) -> None:
    with owner(run_dir) as executor:
        with pytest.raises(RunDirError, match="another executor"):
            RunDir(run_dir).lock("executor")
        executor.kill()
        os.close(RunDir(run_dir).lock("executor"))


def test_two_instances_in_two_directories_do_not_meet(tmp_path: Path) -> None:
    with owner(tmp_path / "one") as one, owner(tmp_path / "two") as two:
        assert one.path.exists()
        assert two.path.exists()


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare(1)"
)
def test_a_ring_is_known_to_live_from_another_pid_namespace(run_dir: Path) -> None:
    """As between two containers that share the directory, where pids mean nothing."""
    sweep = (
        "import sys; from pathlib import Path; from svc_wire.ring import sweep_rings;"
        "print(len(sweep_rings(Path(sys.argv[1]))))"
    )
    command = [
        "unshare",
        "--pid",
        "--fork",
        "--mount-proc",
        sys.executable,
        "-c",
        sweep,
        str(run_dir),
    ]
    with owner(run_dir) as executor:
        found = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        if found.returncode and "unshare" in found.stderr:
            pytest.skip(found.stderr)
        assert found.stdout == "0\n"
        executor.kill()
        found = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        assert found.stdout == "1\n"


@contextmanager
def small_tmpfs(path: Path, size: int) -> Iterator[None]:
    """A tmpfs of `size` bytes at `path`, or a skip where mounting is not allowed."""
    options = ["-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", str(path)]
    mounted = subprocess.run(["mount", *options], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_a_tmpfs_too_small_is_an_error_that_names_the_flag(run_dir: Path) -> None:
    with small_tmpfs(run_dir, ring_bytes(SMALL) // 2), owner(run_dir) as executor:
        code, stderr = executor.finish()
        assert code == 1
        assert stderr.startswith(f"RingTooLarge: the frame ring needs {ring_bytes(SMALL)} bytes")
        assert "--run-dir" in stderr
        assert [*run_dir.glob("ring-*")] == []


def test_a_file_size_limit_too_small_is_the_same_error(run_dir: Path) -> None:
    """What a machine without the right to mount can check."""
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({4096}, {4096}))\n"
    found = subprocess.run(
        [sys.executable, "-c", limit + OWNER, str(run_dir), "locked"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert found.returncode == 1
    assert found.stderr.startswith("RingTooLarge: ")
    assert [*run_dir.glob("ring-*")] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a directory away")
def test_a_run_dir_of_another_owner_is_refused(run_dir: Path) -> None:
    os.chown(run_dir, 12345, -1)
    with owner(run_dir) as executor:
        code, stderr = executor.finish()
        assert code == 1
        assert "it has owner 12345 and mode 0700" in stderr


def test_a_run_dir_open_to_others_is_refused(run_dir: Path) -> None:
    run_dir.chmod(0o755)
    with owner(run_dir) as executor:
        code, stderr = executor.finish()
        assert code == 1
        assert "mode 0755" in stderr


def test_a_socket_path_too_long_is_refused(tmp_path: Path) -> None:
    with owner(tmp_path / ("x" * 90)) as executor:
        code, stderr = executor.finish()
        assert code == 1
        assert "too long for a socket" in stderr


def test_many_starts_and_kills_leave_one_ring(run_dir: Path) -> None:
    for _ in range(5):
        with owner(run_dir) as executor:
            executor.kill()
    sweep_rings(run_dir)
    ring = ExecutorRing.create(run_dir, SMALL)
    assert [*run_dir.glob("ring-*")] == [ring.path]
