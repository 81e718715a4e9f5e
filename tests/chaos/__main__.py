"""`make chaos`: a real instance, a crowd of clients, and one fault after another.

    python -m tests.chaos [SEED] [--seconds N] [--model tiny]

Every stream must end with the tokens of a quiet run, whatever happens. At the end nothing may be
left: no process, no socket, no ring; and the front end may not have grown. A seed fixes which
faults come in which order, not what they hit.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import psutil
import typer

from tests.chaos.clock import jumping_clock
from tests.chaos.model_crowd import ModelCrowd, quiet_answers
from tests.chaos.monkey import Monkey
from tests.support.crowd import Crowd
from tests.support.jobs import wait_idle
from tests.support.serve import Serve
from tests.support.tmpfs import private_dir
from twostroke_client import Client

STREAMS, MODEL_STREAMS = 64, 16
HASH_VOCAB = 257
SHM_SIZE = "24m"
GROWTH_MAX = 1.25
WARM_UP_S = 5.0

ENVIRONMENT = {
    "TWOSTROKE_STEP_MS": "20",
    "TWOSTROKE_MODEL_LEN_MAX": "512",
    "TWOSTROKE_NUM_BLOCKS": "1024",
    "TWOSTROKE_ROWS_MAX": "64",
    "TWOSTROKE_DTYPE": "float32",
    "TWOSTROKE_LOG_LEVEL": "warning",
}
OPTIONS = ("--restarts-max", "1000", "--stall-timeout", "1", "--outage-timeout", "60")


def main(
    seed: Annotated[int | None, typer.Argument(help="Absent: another one each time.")] = None,
    seconds: Annotated[float, typer.Option(help="How long faults come.")] = 60.0,
    model: Annotated[str, typer.Option(help="hash, or tiny: a small real model.")] = "hash",
) -> None:
    """Torment an instance."""
    seed = random.randrange(10**6) if seed is None else seed
    _say(f"seed {seed}, {seconds:g} s, {model}")
    os.environ.update(ENVIRONMENT)
    with tempfile.TemporaryDirectory() as name, _own_tmpfs() as shm:
        folder = Path(name)
        options = (*OPTIONS, "--model", _model(model, folder))
        with jumping_clock(folder) as clock, Serve(*options, shm=shm) as serve:
            chance = random.Random(seed)
            crowd = _crowd(serve, chance, seed, is_real=model != "hash")
            faults = _torment(serve, Monkey(serve, chance, shm, clock), crowd, chance, seconds)
            _end(serve)
    _say(f"{crowd.ends.total()} streams, all right; faults: {dict(faults)}")


def _model(name: str, folder: Path) -> str:
    if name != "tiny":
        return name
    from tests.tiny_model import save_tiny_model  # torch takes seconds to import

    return str(save_tiny_model(folder / "tiny"))


def _crowd(serve: Serve, chance: random.Random, seed: int, *, is_real: bool) -> Crowd:
    if not is_real:
        return Crowd(serve.address, STREAMS, seed=seed, vocab_size=HASH_VOCAB)
    with Client(serve.address) as client:
        answers = quiet_answers(client, chance, client.model_info().vocab_size)
    return ModelCrowd(serve.address, MODEL_STREAMS, seed=seed, answers=answers)


def _torment(
    serve: Serve, monkey: Monkey, crowd: Crowd, chance: random.Random, seconds: float
) -> Counter[str]:
    """What was done."""
    done = Counter[str]()
    with Client(serve.address) as client:
        with crowd:
            time.sleep(WARM_UP_S)
            grown_from = _memory_bytes(serve)
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                fault = chance.choice(monkey.faults)
                _say(f"{deadline - time.monotonic():5.1f} s left: {fault.__name__}")
                fault()
                done[fault.__name__] += 1
                time.sleep(chance.uniform(0.0, 1.5))
                crowd.check()
        wait_idle(client, timeout_s=20)
    growth = _memory_bytes(serve) / grown_from
    assert growth < GROWTH_MAX, f"the front end has grown to {growth:.2f} of its size"
    return done


def _end(serve: Serve) -> None:
    """Stops it and looks for what may be left."""
    processes = [serve.supervisor, *serve.find_services().values()]
    serve.signal(signal.SIGTERM)
    assert serve.wait(60) == 0, "stopped as asked"
    _, alive = psutil.wait_procs(processes, timeout=5)
    assert alive == [], "processes are left"
    assert serve.leftovers() == [], "files are left"


def _memory_bytes(serve: Serve) -> int:
    return int(serve.find_services()["frontend"].memory_full_info().uss)


@contextmanager
def _own_tmpfs() -> Iterator[Path | None]:
    """A small tmpfs that may be filled; None where this user may not mount one."""
    with private_dir() as folder:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={SHM_SIZE},mode=0700", "tmpfs", str(folder)]
        if subprocess.run(mount, stderr=subprocess.DEVNULL, check=False).returncode:
            _say("no tmpfs can be mounted: it will not be filled")
            yield None
            return
        try:
            yield folder
        finally:
            subprocess.run(["umount", "-l", folder], check=True)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    typer.run(main)
