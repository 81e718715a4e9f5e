"""A fake service for tests of the supervisor: python fake_service.py ROLE RUN_DIR [BEHAVIOUR ...].

It shows the signs of its role (a socket's name, a ring, a health service once the others have
shown theirs), writes its role to the file `ends` beside RUN_DIR when it ends as asked, and behaves
badly on request:

    silent        never shows its sign
    dies          exits with status 7 as soon as RUN_DIR/die exists
    stubborn      ignores SIGTERM
    beats         shows a pulse
    refuses       exits with status 2, as for wrong options
    late          as dies, a while after its start, before it is up
    deaf          ignores SIGINT
    lingers       gives up its lock when it is replaced, and ends only when it is asked once more
    usurps        dies with status 7 when another one has given it its lock
    wrong         finds its options wrong when it is asked
    ponders       takes for ever over that
"""

import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from svc_shell.parent import follow_parent
from svc_shell.presence import SERVING
from svc_shell.pulse import beat
from svc_wire.rundir import RunDir

SIGNS = {"scheduler": "scheduler.sock", "executor": "ring-1-x"}
LIFE_S_MAX = 60.0
LOOK_S = 0.02
LATE_S = 1.0


def main(role: str, run_dir: Path, *behaviour: str) -> None:
    follow_parent()
    if "--check" in behaviour:
        time.sleep(LIFE_S_MAX if "ponders" in behaviour else 0.0)
        if "wrong" in behaviour:
            sys.stderr.write("Usage: ...\n\nError: Invalid value: bad\n")
        sys.exit(2 if "wrong" in behaviour else 0)
    # A list, not an Event: a handler that sets the Event that its own thread waits on can deadlock.
    ended: list[int] = []
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, lambda signum, _: ended.append(signum))
    if "stubborn" in behaviour:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "deaf" in behaviour:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if "refuses" in behaviour:
        sys.exit(2)
    if {"dies", "late"} & set(behaviour) and (run_dir / "die").exists():
        time.sleep(LATE_S if "late" in behaviour else 0.0)
        os._exit(7)
    place = RunDir(run_dir)
    name = behaviour[behaviour.index("--name") + 1] if "--name" in behaviour else role
    lock = place.take_over(name, 10.0) if "--replace" in behaviour else place.lock(name)
    if "usurps" in behaviour:
        os._exit(7)
    if "silent" not in behaviour:
        if role == "frontend":
            while not ended and not all((run_dir / sign).exists() for sign in SIGNS.values()):
                time.sleep(LOOK_S)
            _serve_health(run_dir)
            os.pwrite(lock, f"{os.getpid()}\n{SERVING}\n".encode(), 0)
        else:
            (run_dir / SIGNS[role]).touch()
    for _ in range(int(LIFE_S_MAX / LOOK_S)):
        if ended:
            break
        time.sleep(LOOK_S)
        if "beats" in behaviour:
            beat(lock)
        if "dies" in behaviour and (run_dir / "die").exists():
            os._exit(7)
    if "lingers" in behaviour and ended[:1] == [signal.SIGINT]:
        os.close(lock)
        for _ in range(int(LIFE_S_MAX / LOOK_S)):
            if len(ended) > 1:
                break
            time.sleep(LOOK_S)
    for sign in run_dir.glob(SIGNS.get(role, "frontend.address")):
        sign.unlink()
    with (run_dir.parent / "ends").open("a") as ends:
        ends.write(f"{role}\n")
    os._exit(0)


def _serve_health(run_dir: Path) -> None:
    server = grpc.server(ThreadPoolExecutor(2))
    servicer = health.HealthServicer()
    servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    (run_dir / "frontend.address").write_text(f"127.0.0.1:{port}\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
