"""A record that spans several schedulers: KV memory goes on, so a replay has to begin with it."""

from pathlib import Path

from executor_svc.hash_runner import HashRunner
from executor_svc.recording import Record, RecordedRunner
from executor_svc.replay import Replay
from tests.support.planner import Job, Planner
from tests.support.plans import SMALL


def test_epochs_that_go_on_from_each_other_are_run_again(tmp_path: Path) -> None:
    jobs = [Job([1, 2, 3, 4, 5], 9), Job([7, 8], 12, arrives_at_step=3)]
    path = tmp_path / "record"
    runner = RecordedRunner(HashRunner(SMALL), path)
    planner = Planner(runner, jobs)
    planner.run(hand_over_every=4)
    runner.close()
    assert planner.epochs > 2
    replay = Replay(Record(path), HashRunner(SMALL), compares=True)
    replay.run()
    assert replay.tokens == 21
