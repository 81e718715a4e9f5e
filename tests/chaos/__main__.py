"""`make chaos`: a real instance, a crowd of clients, and one fault after another.

    python -m tests.chaos [SEED] [--seconds N]

Every stream must end with the tokens of a quiet run, whatever happens. At the end nothing may be
left: no process, no socket, no ring; and the front end, which lives through all of it, may not have
grown. A seed fixes which faults come in which order, not what they hit.
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

import psutil

from tests.chaos.monkey import Monkey
from tests.support.crowd import Crowd
from tests.support.jobs import wait_idle
from tests.support.serve import Serve
from twostroke_client import Client

SECONDS = 60.0
STREAMS = 64
HASH_VOCAB = 257
SHM_SIZE = "24m"
GROWTH_MAX = 1.25
WARM_UP_S = 5.0

ENVIRONMENT = {
    "TWOSTROKE_STEP_MS": "20",
    "TWOSTROKE_MODEL_LEN_MAX": "512",
    "TWOSTROKE_NUM_BLOCKS": "1024",
    "TWOSTROKE_LOG_LEVEL": "warning",
}
OPTIONS = ("--restarts-max", "1000", "--stall-timeout", "1", "--outage-timeout", "60")


def main(words: list[str]) -> None:
    seconds = float(words.pop()) if words[-2:-1] == ["--seconds"] else SECONDS
    seed = int(words[0]) if words and words[0].isdigit() else random.randrange(10**6)
    _say(f"seed {seed}, {seconds:g} s")
    os.environ.update(ENVIRONMENT)
    with _own_tmpfs() as shm, Serve(*OPTIONS, shm=shm) as serve:
        faults, ends = _torment(serve, random.Random(seed), seed, seconds, shm)
        processes = [serve.supervisor, *serve.find_services().values()]
        serve.signal(signal.SIGTERM)
        assert serve.wait(60) == 0, "stopped as asked"
        _, alive = psutil.wait_procs(processes, timeout=5)
        assert alive == [], "processes are left"
        assert serve.leftovers() == [], "files are left"
    _say(f"{ends.total()} streams, all right; faults: {dict(faults)}")


def _torment(
    serve: Serve, chance: random.Random, seed: int, seconds: float, shm: Path | None
) -> tuple[Counter[str], Counter[str]]:
    """What was done, and how streams ended."""
    monkey, done = Monkey(serve, chance, shm), Counter[str]()
    with Client(serve.address) as client:
        with Crowd(serve.address, STREAMS, seed=seed, vocab_size=HASH_VOCAB) as crowd:
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
    return done, crowd.ends


def _memory_bytes(serve: Serve) -> int:
    return int(serve.services["frontend"].memory_full_info().uss)


@contextmanager
def _own_tmpfs() -> Iterator[Path | None]:
    """A small tmpfs that may be filled; None where this user may not mount one."""
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/dev/shm") as folder:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={SHM_SIZE},mode=0700", "tmpfs", folder]
        if subprocess.run(mount, stderr=subprocess.DEVNULL, check=False).returncode:
            _say("no tmpfs can be mounted: it will not be filled")
            yield None
            return
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "-l", folder], check=True)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
