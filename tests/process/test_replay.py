"""What an executor records is run again, and gives the same tokens or says where it does not."""

import asyncio
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from executor_svc.hash_runner import HashRunner
from executor_svc.recording import FAILURE, RESULT, Record, RecordError
from executor_svc.replay import Difference, Replay
from tests.support.jobs import make_job, run_round
from tests.support.stack import Stack
from twostroke_client import Client, ExecutionFailed

pytestmark = pytest.mark.process

POOL = ("--num-blocks", "64", "--model-len-max", "1024", "--rows-max", "16")
SECRET = 77


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of the same load: whole, redacted, and cut at a bound; one with a failed step."""
    path = tmp_path_factory.mktemp("records")
    options = {
        "whole": (),
        "redacted": ("--record-redacted",),
        "cut": ("--record-bytes", "100000"),
    }
    for name, more in options.items():
        executor = ("--model", "hash", *POOL, "--record", str(path / name), *more)
        with Stack(executor=executor) as stack:
            chance = random.Random(1)
            jobs = [make_job(chance, 257) for _ in range(24)]
            asyncio.run(run_round(stack.address, jobs))
    return path


def replay(path: Path) -> Replay:
    record = Record(path)
    runner = HashRunner(record.head.capacity, eos_ids=record.head.model.eos_ids)
    it = Replay(record, runner, compares=not record.head.redacted)
    it.run()
    return it


def test_a_record_gives_the_same_tokens(folder: Path) -> None:
    it = replay(folder / "whole")
    results = sum(kind == RESULT for kind, _ in Record(folder / "whole").entries())
    assert it.steps == results > 24
    assert it.tokens > it.steps, "more than one row a step"


def test_a_difference_is_told_by_step_and_row(folder: Path, tmp_path: Path) -> None:
    changed = tmp_path / "changed"
    data = bytearray((folder / "whole").read_bytes())
    kind, payload = list(Record(folder / "whole").entries())[-1]
    assert kind == RESULT
    assert data.endswith(payload)
    data[-4] ^= 1  # the last row's token
    changed.write_bytes(data)
    with pytest.raises(Difference, match=r"epoch 1 step \d+ row \d+: recorded token \d+ status"):
        replay(changed)


def test_a_redacted_record_holds_no_tokens_and_still_runs(folder: Path) -> None:
    prompts = [make_job(chance, 257).prompt for chance in [random.Random(1)] for _ in range(24)]
    said = [np.array(prompt[:16], "<i4").tobytes() for prompt in prompts if len(prompt) >= 16]
    assert any(words in (folder / "whole").read_bytes() for words in said)
    assert not any(words in (folder / "redacted").read_bytes() for words in said)
    it = replay(folder / "redacted")
    assert it.steps > 24
    for kind, payload in Record(folder / "redacted").entries():
        if kind == RESULT:
            rows = (len(payload) - 16) // 5
            assert not any(payload[16 + rows :])


def test_a_record_has_a_bound_and_its_beginning_can_be_run(folder: Path) -> None:
    assert (folder / "cut").stat().st_size <= 100_000 + 1000
    assert 0 < replay(folder / "cut").steps < replay(folder / "whole").steps


def test_a_record_that_was_cut_off_is_run_as_far_as_it_goes(folder: Path, tmp_path: Path) -> None:
    part = tmp_path / "part"
    data = (folder / "whole").read_bytes()
    part.write_bytes(data[: len(data) // 2])
    assert replay(part).steps > 0


@pytest.mark.parametrize("data", [b"", b"TWOREC1\n", b"something else", b"TWOREC1\n\2\0\0\0{}"])
def test_what_is_no_record_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "record"
    path.write_bytes(data)
    with pytest.raises(RecordError):
        Record(path)


def test_a_failed_step_is_in_the_record(tmp_path: Path) -> None:
    path = tmp_path / "record"
    executor = ("--model", "hash", "--record", str(path), "--fail-seed", str(SECRET))
    with Stack(executor=executor) as stack, Client(stack.address) as client:
        client.complete([1, 2], max_tokens=3, ignore_eos=True)
        with pytest.raises(ExecutionFailed):
            client.complete([1, 2, 3], max_tokens=3, seed=SECRET)
    assert [kind for kind, _ in Record(path).entries()].count(FAILURE) == 2
    with pytest.raises(Difference, match="the record has a failure, now there is none: sabotage"):
        replay(path)


def test_the_command_says_how_it_went(folder: Path) -> None:
    command = [sys.executable, "-m", "executor_svc.replay"]
    done = subprocess.run(
        [*command, str(folder / "whole")], capture_output=True, text=True, check=True, timeout=60
    )
    assert "tokens: as recorded" in done.stdout
    failed = subprocess.run(
        [*command, "/no/such"], capture_output=True, text=True, check=False, timeout=60
    )
    assert (failed.returncode, failed.stderr) == (
        1,
        "cannot read /no/such: No such file or directory\n",
    )
