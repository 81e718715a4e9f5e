"""The executor as a process: handshake, steps, failures, endings. The hash runner does the work."""

import os
import random
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from executor_svc.hash_model import expected_tokens
from executor_svc.runner import RunnerError
from svc_wire.executor_link import (
    PROTOCOL_VERSION,
    Beat,
    Hello,
    PlanReady,
    Refused,
    StepFailed,
    Welcome,
)
from svc_wire.frontend_link import Sampling
from tests.support.executor_client import DEADLINE_S, ExecutorProcess, Peer, RemoteRunner
from tests.support.planner import Job, Planner

pytestmark = pytest.mark.process

SMALL = ("--model", "hash", "--num-blocks", "64", "--block-size", "4", "--rows-max", "8")


@pytest.fixture
def executor(run_dir: Path) -> Iterator[ExecutorProcess]:
    with ExecutorProcess(run_dir, *SMALL) as started:
        yield started


def _jobs(count: int, seed: int) -> list[Job]:
    rng = random.Random(seed)
    return [
        Job(
            [rng.randrange(257) for _ in range(rng.randint(1, 60))],
            rng.randint(1, 40),
            Sampling(temperature=rng.choice([0.0, 1.0]), seed=rng.getrandbits(32)),
            stop_ids=(256, rng.randrange(257)),
            arrives_at_step=rng.randrange(30),
        )
        for _ in range(count)
    ]


def _expected(job: Job) -> list[int]:
    return expected_tokens(
        job.prompt,
        vocab_size=257,
        max_tokens=job.max_tokens,
        sampling=job.sampling,
        stop_ids=job.stop_ids,
    )


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_plans_are_executed_at_any_depth(executor: ExecutorProcess, depth: int) -> None:
    jobs = _jobs(12, seed=depth)
    with Peer(executor.run_dir.executor_endpoint) as peer:
        planner = Planner(RemoteRunner(peer), jobs, depth=depth, preempt_chance=0.05)
        assert planner.run() == [_expected(job) for job in jobs]
    assert planner.preemptions


def test_the_welcome_tells_what_was_asked_for(executor: ExecutorProcess) -> None:
    with Peer(executor.run_dir.executor_endpoint) as peer:
        welcome = peer.hello(epoch_seen=41)
        assert welcome.epoch == 42
        assert (welcome.capacity.num_blocks, welcome.capacity.block_size) == (64, 4)
        assert welcome.capacity.rows_max == 8
        assert (welcome.model.name, welcome.model.eos_ids) == ("hash", (256,))
        assert peer.hello(epoch_seen=0).epoch == 43


def test_another_protocol_is_refused_and_disturbs_nobody(executor: ExecutorProcess) -> None:
    endpoint = executor.run_dir.executor_endpoint
    with Peer(endpoint) as peer, Peer(endpoint) as stranger:
        runner = RemoteRunner(peer)
        stranger.send_bytes(b"\xc1 not msgpack")
        stranger.send(Hello(PROTOCOL_VERSION + 1, 7))
        refused = stranger.receive_no_beat()
        assert isinstance(refused, Refused)
        assert str(PROTOCOL_VERSION + 1) in refused.reason
        jobs = _jobs(3, seed=9)
        assert Planner(runner, jobs).run() == [_expected(job) for job in jobs]


def test_a_torn_plan_fails_the_epoch_and_the_next_one_works(executor: ExecutorProcess) -> None:
    with Peer(executor.run_dir.executor_endpoint) as peer:
        runner = RemoteRunner(peer)
        runner.ring.plan_frame(1).raw[:] = 7
        if runner.ring.publish_plan(runner.epoch, 1):
            peer.send(PlanReady(runner.epoch, 1))
        failed = peer.receive_no_beat()
        assert isinstance(failed, StepFailed)
        assert (failed.epoch, failed.step) == (1, 1)
        assert peer.hello(epoch_seen=1).epoch == 2


def test_a_runner_error_comes_back_with_its_reason(executor: ExecutorProcess) -> None:
    job = Job([1, 2, 3, 4, 5, 6], max_tokens=3)
    with Peer(executor.run_dir.executor_endpoint) as peer:
        runner = RemoteRunner(peer)
        planner = Planner(runner, [job])
        planner.sequences[0].planned = 4  # whose KV nobody has written
        with pytest.raises(RunnerError, match=r"position 0 should be in block \d+ offset 0"):
            planner.run()


def test_beats_come_every_second_while_idle(executor: ExecutorProcess) -> None:
    with Peer(executor.run_dir.executor_endpoint) as peer:
        epoch = peer.hello().epoch
        begin = time.monotonic()
        beats = [peer.receive(timeout_s=5.0) for _ in range(3)]
        assert beats == [Beat(epoch, 0)] * 3
        assert 1.5 < time.monotonic() - begin < 4.5


def test_idle_costs_next_to_nothing(executor: ExecutorProcess) -> None:
    with Peer(executor.run_dir.executor_endpoint) as peer:
        Planner(RemoteRunner(peer), _jobs(2, seed=3)).run()
        process = psutil.Process(executor.process.pid)
        spent = []
        for _ in range(4):
            while not isinstance(peer.receive(timeout_s=5.0), Beat):
                pass  # doorbells of the steps before
            spent.append(sum(process.cpu_times()[:2]))
        assert spent[-1] - spent[0] < 0.05


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(executor: ExecutorProcess, signum: signal.Signals) -> None:
    with Peer(executor.run_dir.executor_endpoint) as peer:
        ring_path = Path(peer.hello().ring_path)
        assert ring_path.exists()
        assert executor.end(signum) == 0
    left = {path.name for path in executor.run_dir.path.iterdir()}
    assert left == {"executor.lock", "executor.log"}


def test_the_ring_of_a_killed_executor_is_swept_by_the_next(
    executor: ExecutorProcess, run_dir: Path
) -> None:
    with Peer(executor.run_dir.executor_endpoint) as peer:
        ring_path = Path(peer.hello().ring_path)
        executor.end(signal.SIGKILL)
        assert ring_path.exists()
        with ExecutorProcess(run_dir, *SMALL):
            assert peer.hello(epoch_seen=1).epoch == 2
            assert not ring_path.exists()


def test_a_second_executor_in_the_directory_is_refused(
    executor: ExecutorProcess, run_dir: Path
) -> None:
    with Peer(executor.run_dir.executor_endpoint) as peer:
        peer.hello()
        with ExecutorProcess(run_dir, *SMALL) as second:
            assert second.process.wait(DEADLINE_S) == 1
            assert "another executor runs in" in second.log
        assert isinstance(peer.hello(), Welcome)


def run_steps(peer: Peer, count: int) -> Planner:
    """In a new epoch."""
    runner = RemoteRunner(peer)
    planner = Planner(runner, [Job([1, 2, 3], max_tokens=count + 1)], depth=0, epoch=runner.epoch)
    for _ in range(count):
        assert planner.publish_next()
        planner._commit()
    return planner


def test_a_scheduler_is_told_in_which_state_kv_memory_is(executor: ExecutorProcess) -> None:
    with Peer(executor.run_dir.executor_endpoint) as peer:
        assert (peer.hello().kv_epoch, peer.hello().kv_step) == (0, 0)
        run_steps(peer, 4)
        welcome = peer.hello()
        left = (welcome.epoch - 1, 4)
        assert (welcome.kv_epoch, welcome.kv_step) == left
        again = peer.hello()  # nothing has run since
        assert (again.kv_epoch, again.kv_step) == left


def test_steps_that_are_cut_off_void_kv_memory(run_dir: Path) -> None:
    with (
        ExecutorProcess(run_dir, *SMALL, "--step-ms", "3000") as executor,
        Peer(executor.run_dir.executor_endpoint) as peer,
    ):
        assert run_steps(peer, 0).publish_next()
        # The second beat after that comes when the plan has been taken.
        assert [peer.receive(), peer.receive()] == [Beat(1, 0)] * 2
        assert (peer.hello().kv_epoch, peer.hello().kv_step) == (0, 0)


def test_a_step_that_fails_voids_kv_memory(executor: ExecutorProcess) -> None:
    with Peer(executor.run_dir.executor_endpoint) as peer:
        run_steps(peer, 1)  # which is known until then
        planner = run_steps(peer, 1)
        planner.sequences[0].blocks.reverse()
        planner.sequences[0].blocks[0] += 1
        planner.publish_next()
        assert isinstance(peer.receive_no_beat(), StepFailed)
        assert (peer.hello().kv_epoch, peer.hello().kv_step) == (0, 0)


def test_a_slow_step_neither_delays_beats_nor_the_end(run_dir: Path) -> None:
    with (
        ExecutorProcess(run_dir, *SMALL, "--step-ms", "2500") as executor,
        Peer(executor.run_dir.executor_endpoint) as peer,
    ):
        runner = RemoteRunner(peer)
        planner = Planner(runner, [Job([1, 2, 3], max_tokens=1)])
        planner.begin()
        planner.publish_next()
        assert peer.receive(timeout_s=2.0) == Beat(1, 0)
        begin = time.monotonic()
        assert executor.end() == 0
        assert time.monotonic() - begin < 2.0


def test_it_dies_with_its_parent(run_dir: Path) -> None:
    env = {"TWOSTROKE_PARENT_PID": str(os.getpid() + 1)}  # a parent that is gone already
    with ExecutorProcess(run_dir, *SMALL, env=env) as executor:
        assert executor.process.wait(DEADLINE_S) != 0


def test_too_small_a_place_for_the_ring_is_one_clear_sentence(run_dir: Path) -> None:
    def limit_file_size() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))

    with ExecutorProcess(run_dir, *SMALL, preexec=limit_file_size) as executor:
        assert executor.process.wait(DEADLINE_S) == 1
        assert "enlarge that tmpfs, name another with --run-dir" in executor.log
        assert "Traceback" not in executor.log


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--model", "/no/such/folder"), "there is no folder /no/such/folder"),
        (("--model", "hash", "--rows-max", "300", "--model-len-max", "99999999"), "must be below"),
    ],
)
def test_what_cannot_start_says_why(run_dir: Path, options: tuple[str, ...], sentence: str) -> None:
    with ExecutorProcess(run_dir, *options) as executor:
        assert executor.process.wait(DEADLINE_S) == 1
        assert sentence in executor.log
        assert "Traceback" not in executor.log
