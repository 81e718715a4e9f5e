"""`twostroke serve` with the real services and the hash model: starts, stops, deaths, crowds."""

import signal
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.support.serve import ROLES, Serve, wait_until
from twostroke_client import Client, RetryPolicy, TwostrokeError

pytestmark = pytest.mark.process

NEVER = RetryPolicy(resume_s=0)


@pytest.fixture
def slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that last for seconds."""
    monkeypatch.setenv("TWOSTROKE_STEP_MS", "10")


def _answer(address: str) -> int:
    with Client(address) as client:
        return client.complete([1, 2, 3], max_tokens=5, ignore_eos=True).finish.output_tokens


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_serves_then_stops_as_asked_and_leaves_nothing(signum: int) -> None:
    with Serve() as serve:
        assert _answer(serve.address) == 5
        serve.signal(signum)
        assert serve.wait(15) == 0
        assert serve.survivors(0) == []
        assert serve.leftovers() == []
        assert serve.errors().endswith("stopped\n")


def test_a_running_answer_finishes_before_the_end(slow_steps: None) -> None:
    with Serve() as serve, Client(serve.address) as client:
        stream = client.generate([1, 2, 3], max_tokens=150, ignore_eos=True)
        next(stream)
        serve.signal(signal.SIGTERM)
        *_, last = stream
        assert last.finish is not None
        assert last.finish.output_tokens == 150
        assert serve.wait(15) == 0


def test_the_drain_has_a_bound(slow_steps: None) -> None:
    with Serve("--drain-timeout", "1") as serve, Client(serve.address, retry=NEVER) as client:
        stream = client.generate([1, 2, 3], max_tokens=4000, ignore_eos=True)
        next(stream)
        serve.signal(signal.SIGTERM)
        with pytest.raises(TwostrokeError):
            list(stream)
        assert serve.wait(15) == 0


def test_a_second_interrupt_kills(slow_steps: None) -> None:
    with Serve("--drain-timeout", "60") as serve, Client(serve.address) as client:
        stream = client.generate([1, 2, 3], max_tokens=4000, ignore_eos=True)
        next(stream)
        serve.signal(signal.SIGINT)
        assert wait_until(lambda: "draining" in serve.errors(), 5)
        serve.signal(signal.SIGINT)
        assert serve.wait(15) == 130
        assert serve.survivors(0) == []
        assert serve.leftovers() == []


@pytest.mark.parametrize("role", ROLES)
def test_what_may_not_die_ends_the_instance_and_every_stream(role: str, slow_steps: None) -> None:
    with Serve("--restarts-max", "0") as serve, Client(serve.address, retry=NEVER) as client:
        streams = [client.generate([n], max_tokens=4000, ignore_eos=True) for n in range(1, 9)]
        for stream in streams:
            next(stream)
        serve.services[role].kill()
        killed_s = time.monotonic()
        for stream in streams:
            with pytest.raises(TwostrokeError):
                list(stream)
        assert time.monotonic() - killed_s < 2
        assert serve.wait(15) == 1
        pid = serve.services[role].pid
        assert f"the {role} (pid {pid}) was killed by SIGKILL" in serve.errors()
        assert serve.survivors(0) == []
        assert serve.leftovers() == []


@pytest.mark.parametrize("role", ROLES)
def test_streams_outlive_a_killed_service(role: str, slow_steps: None) -> None:
    with Serve() as serve, Client(serve.address) as client:
        streams = [client.generate([n], max_tokens=200, ignore_eos=True) for n in range(1, 9)]
        for stream in streams:
            next(stream)
        serve.services[role].kill()
        for stream in streams:
            *_, last = stream
            assert last.finish is not None
            assert last.finish.output_tokens == 200
        serve.signal(signal.SIGTERM)
        assert serve.wait(15) == 0


def test_a_front_end_comes_back_where_it_was() -> None:
    with Serve() as serve, Client(serve.address) as client:
        assert _answer(serve.address) == 5
        serve.services["frontend"].kill()
        assert wait_until(lambda: _serves(client), 20)
        assert _answer(serve.address) == 5


def _serves(client: Client) -> bool:
    try:
        return client.server_status().ready
    except TwostrokeError:
        return False


def test_a_restart_takes_options_and_a_drain_waits_for_the_end(slow_steps: None) -> None:
    with Serve() as serve, Client(serve.address) as client:
        stream = client.generate([1], max_tokens=300, ignore_eos=True)
        next(stream)
        assert serve.command("restart", "scheduler", "--policy", "priority") == (0, "")
        assert wait_until(lambda: client.server_status().policy == "priority", 10)
        code, said = serve.command("restart", "scheduler", "--policy", "no-such-thing")
        assert (code, "there is no policy 'no-such-thing'" in said) == (2, True)
        assert client.server_status().policy == "priority"
        code, said = serve.command("restart", "executor", "--model", "/no/such/model")
        assert (code, "there is no folder /no/such/model" in said) == (2, True)
        assert serve.command("drain") == (0, "")
        *_, last = stream
        assert last.finish is not None
        assert last.finish.output_tokens == 300
        assert serve.wait(15) == 0
        assert serve.leftovers() == []


@pytest.mark.parametrize("what", ["record", "trace"])
def test_what_only_the_log_of_a_service_knows_is_told_to_who_ordered_its_restart(what: str) -> None:
    with Serve() as serve, Client(serve.address) as client:
        code, said = serve.command("restart", "executor", f"--{what}", "/no/such/folder/file")
        assert code == 1
        assert said == (
            "error: the new executor exited with status 1: "
            f"cannot write the {what} /no/such/folder/file: No such file or directory; "
            "the executor is started again as it was\n"
        )
        assert wait_until(lambda: client.server_status().ready, 20)


def test_a_check_leaves_the_executor_and_its_streams_alone(slow_steps: None) -> None:
    with Serve() as serve, Client(serve.address) as client:
        stream = client.generate([1], max_tokens=150, ignore_eos=True)
        next(stream)
        assert serve.command("restart", "executor", "--check") == (0, "")
        code, said = serve.command("restart", "executor", "--check", "--model", "/no/such/model")
        assert (code, "there is no folder /no/such/model" in said) == (2, True)
        code, said = serve.command("restart", "frontend", "--port", "1")
        assert (code, "does not move the front ends" in said) == (2, True)
        *_, last = stream
        assert last.finish is not None
        assert serve.services["executor"].is_running()
        assert client.server_status().epochs_lost == 0


def test_a_killed_supervisor_leaves_no_orphans(slow_steps: None) -> None:
    with Serve() as serve, Client(serve.address) as client:
        stream = client.generate([1], max_tokens=4000, ignore_eos=True)
        next(stream)
        serve.signal(signal.SIGKILL)
        serve.wait(5)
        with pytest.raises(TwostrokeError):
            list(stream)
        assert serve.survivors(5) == []
        left = [name for name in serve.leftovers() if not name.endswith(".lock")]
        assert left == [str(next(serve.run_dirs.iterdir()))], "no socket and no ring"


def test_what_a_supervisor_killed_at_its_start_left_is_removed_by_the_next_one() -> None:
    with Serve(wait=False) as dying:
        assert wait_until(lambda: len(dying.supervisor.children()) == len(ROLES), 20)
        services = dying.supervisor.children()
        dying.signal(signal.SIGKILL)
        assert psutil.wait_procs(services, 20)[1] == []
        [left] = dying.run_dirs.iterdir()
        with Serve(shm=dying.run_dirs.parent) as after:
            assert not left.exists()
            first, *_ = after.errors().splitlines()
            assert first == f"removed what a dead instance left: {left}"
            assert _answer(after.address) == 5


def test_eight_instances_at_once() -> None:
    with ExitStack() as stack:
        instances = [stack.enter_context(Serve(wait=False)) for _ in range(8)]
        for instance in instances:
            instance.wait_ready()
        assert len({instance.address for instance in instances}) == 8
        assert [_answer(instance.address) for instance in instances] == [5] * 8
        for instance in instances:
            instance.signal(signal.SIGTERM)
        assert [instance.wait(30) for instance in instances] == [0] * 8


@pytest.mark.parametrize(
    ("which", "purpose"), [("--port", "listen"), ("--metrics-port", "show metrics")]
)
def test_a_port_in_use_is_one_sentence_before_anything_starts(which: str, purpose: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with Serve(which, port, wait=False) as serve:
            assert serve.wait(30) == 1
            said = f"error: cannot {purpose} on 127.0.0.1:{port}: Address already in use\n"
            assert serve.errors() == said


def test_a_policy_of_the_environment_can_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOSTROKE_POLICY", "fair")
    monkeypatch.setenv("TWOSTROKE_POLICY_OPT", "weight.gold=3")
    with Serve() as serve, Client(serve.address) as client:
        assert client.server_status().policy == "fair"
        assert serve.command("restart", "scheduler", "--policy", "fcfs") == (0, "")
        assert wait_until(lambda: client.server_status().policy == "fcfs", 10)


@pytest.mark.parametrize(
    "options",
    [
        ("--policy", "no-such-thing"),
        ("--depth", "99"),
        ("--port", "-1"),
        ("--metrics-port", "50050", "--frontends", "2", "--port", "50051"),
    ],
)
def test_a_wrong_option_is_a_usage_error(options: tuple[str, ...]) -> None:
    with Serve(*options, wait=False) as serve:
        assert serve.wait(30) == 2
        assert f"Invalid value for '{options[0]}'" in serve.errors() or options[1] in serve.errors()
        assert "Traceback" not in serve.errors()


def test_an_interrupt_while_it_imports_leaves_no_traceback() -> None:
    with Serve(wait=False) as serve:
        status = Path(f"/proc/{serve.supervisor.pid}/status")
        # Python catches SIGINT from its very start; the command lets go of it to import.
        assert wait_until(lambda: not _catches_sigint(status), 10)
        serve.signal(signal.SIGINT)
        assert serve.wait(10) == -signal.SIGINT
        assert serve.errors() == ""


def _catches_sigint(status: Path) -> bool:
    caught = next(line for line in status.read_text().splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) & 1 << signal.SIGINT - 1)


def test_an_interrupt_while_services_start_leaves_nothing() -> None:
    with Serve(wait=False) as serve:
        assert wait_until(lambda: any(serve.run_dirs.glob("*/*.lock")), 20)
        serve.signal(signal.SIGINT)
        assert serve.wait(20) in (0, 130)
        assert "Traceback" not in serve.errors()
        assert serve.leftovers() == []


def test_an_unknown_model_is_one_sentence() -> None:
    with Serve("--model", "/no/such/model", wait=False) as serve:
        assert serve.wait(60) == 1
        *_, last = serve.errors().splitlines()
        assert last.startswith("error: the executor (pid ")
        assert ") exited with status 1: there is no folder /no/such/model" in last
        assert "Traceback" not in serve.errors()


def test_readiness_has_a_bound() -> None:
    with Serve("--ready-timeout", "0.5", wait=False) as serve:
        assert serve.wait(30) == 1
        assert "error: not ready after 0.5 s: no sign of the " in serve.errors()
        assert serve.leftovers() == []
