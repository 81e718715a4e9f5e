"""The command line against a scripted server: what goes where, and the exit codes."""

import json
import math
import threading
from collections.abc import Iterator

import grpc
import pytest
from typer.testing import CliRunner, Result

from tests.support.fake_server import ANSWER, Abort, FakeServer, Step, first, last
from twostroke.v1 import generation_pb2 as pb
from twostroke_client import local
from twostroke_client.cli import app


@pytest.fixture(autouse=True)
def quiet_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as running:
        yield running


def run(*args: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(app, args, input=stdin)


def test_text_goes_to_stdout_and_the_summary_to_stderr(server: FakeServer) -> None:
    done = run("generate", "hi", "--address", server.address)
    assert (done.exit_code, done.stdout) == (0, "Hello!\n")
    assert done.stderr == (
        "first token 100 ms · 4 tokens · 3.0 tokens/s · executor busy 75% · ended by stop\n"
    )


def test_a_prompt_is_a_chat_message_unless_raw(server: FakeServer) -> None:
    run("generate", "hi", "--system", "be brief", "--address", server.address)
    run("generate", "hi", "--raw", "--address", server.address)
    run("generate", "-", "--raw", "--address", server.address, stdin="from stdin")
    chat, raw, piped = server.requests
    assert [(m.role, m.content) for m in chat.chat.messages] == [
        ("system", "be brief"),
        ("user", "hi"),
    ]
    assert raw.text == "hi"
    assert piped.text == "from stdin"


def test_options_reach_the_request(server: FakeServer) -> None:
    options = "--temperature 0.5 --top-k 4 --top-p 0.25 --min-p 0.125 --seed 7 --max-tokens 9"
    flags = ["--stop", "a", "--stop", "b", "--ignore-eos", "--model", "m"]
    done = run("generate", "hi", *options.split(), *flags, "--address", server.address)
    assert done.exit_code == 0
    (request,) = server.requests
    sampling, stop = request.sampling, request.stop
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.5, 4, 0.25)
    assert (sampling.min_p, sampling.seed, stop.max_tokens) == (0.125, 7, 9)
    assert (list(stop.strings), stop.ignore_eos, request.model) == (["a", "b"], True, "m")


def test_penalties_reach_the_request(server: FakeServer) -> None:
    options = "--repetition-penalty 1.5 --presence-penalty -0.5 --frequency-penalty 0.25"
    run("generate", "hi", *options.split(), "--logprobs", "0", "--address", server.address)
    (request,) = server.requests
    sampling = request.sampling
    assert (sampling.repetition_penalty, sampling.presence_penalty) == (1.5, -0.5)
    assert sampling.frequency_penalty == 0.25
    assert request.output.HasField("logprobs")


def test_log_probabilities_are_a_line_a_token() -> None:
    def told(token_id: int, text: str, share: float) -> pb.Logprob:
        return pb.Logprob(token_id=token_id, text=text, logprob=math.log(share))

    entries = [
        pb.TokenLogprobs(
            chosen=told(1, "Hel", 0.5), top=[told(1, "Hel", 0.5), told(2, "\n", 0.25)]
        ),
        pb.TokenLogprobs(chosen=told(3, " [b]", 0.001)),
        pb.TokenLogprobs(chosen=told(2, "", 1.0), top=[told(5, "\x9b", 1.0)]),
    ]
    pieces = [first("Hel [b]", [1, 3]), last(2, "")]
    pieces[0].logprobs.extend(entries[:2])
    pieces[1].logprobs.extend(entries[2:])
    with FakeServer(pieces) as server:
        done = run("generate", "hi", "--logprobs", "2", "--address", server.address)
    assert done.stdout == (
        '"Hel"              50.0 %   "Hel" 50.0 %   "\\n" 25.0 %\n'
        '" [b]"              0.1 %\n'
        '#2                100.0 %   "\ufffd" 100.0 %\n'
    )
    assert done.stderr.startswith("first token 100 ms")


def test_absent_options_are_the_servers_to_choose(server: FakeServer) -> None:
    run("generate", "hi", "--address", server.address)
    (request,) = server.requests
    assert not request.sampling.ListFields()
    assert not request.stop.ListFields()


def test_json_is_a_line_for_each_piece(server: FakeServer) -> None:
    done = run("generate", "hi", "--json", "--address", server.address)
    pieces = [json.loads(line) for line in done.stdout.splitlines()]
    assert "".join(piece["text"] for piece in pieces) == "Hello!"
    assert pieces[-1]["finish"]["reason"] == "stop"
    assert done.stderr == ""


CODES: dict[str, tuple[list[Step], int]] = {
    "invalid": ([Abort(grpc.StatusCode.INVALID_ARGUMENT, reason="INVALID_FIELD")], 2),
    "too long": ([Abort(grpc.StatusCode.INVALID_ARGUMENT, reason="TOO_LONG")], 2),
    "draining": (
        [Abort(grpc.StatusCode.UNAVAILABLE, reason="DRAINING", retry_after_s=60)],
        3,
    ),
    "failed": ([Abort(grpc.StatusCode.INTERNAL, reason="EXECUTION_FAILED")], 1),
    "lost midway": (
        [first("He", [1]), Abort(grpc.StatusCode.UNAVAILABLE, reason="EXECUTOR_LOST")],
        1,
    ),
    "cut off": ([first("He", [1])], 1),
}


@pytest.mark.parametrize(("script", "code"), CODES.values(), ids=CODES.keys())
def test_exit_codes(script: list[Step], code: int) -> None:
    with FakeServer(script) as server:
        done = run("generate", "hi", "--address", server.address)
    assert done.exit_code == code
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_deadline_has_its_own_exit_code() -> None:
    with FakeServer([first("He", [1]), threading.Event()]) as server:
        done = run("generate", "hi", "--timeout", "2", "--address", server.address)
    assert (done.exit_code, done.stdout) == (4, "He\n")
    assert done.stderr == "error: the time given with --timeout is up\n"


def test_a_model_without_a_chat_template_gets_a_hint() -> None:
    script = [Abort(grpc.StatusCode.INVALID_ARGUMENT, reason="INVALID_FIELD", field="chat")]
    with FakeServer(script) as server:
        done = run("generate", "hi", "--address", server.address)
    assert done.exit_code == 2
    assert "--raw" in done.stderr


def test_nobody_there() -> None:
    done = run("status", "--address", "127.0.0.1:1")
    assert done.exit_code == 3
    assert done.stderr.splitlines() == [
        "error: the connection to 127.0.0.1:1 failed: Connection refused",
        "Is a server running there? `twostroke serve` starts one.",
    ]


def test_a_value_that_cannot_be_sent_is_a_usage_error(server: FakeServer) -> None:
    done = run("generate", "hi", "--top-k", "-5", "--address", server.address)
    assert done.exit_code == 2
    assert done.stderr.startswith("error: sampling.top_k cannot be -5")


def test_brackets_are_text_not_markup() -> None:
    with FakeServer([Abort(grpc.StatusCode.INTERNAL, "no [/bold] move")]) as server:
        done = run("generate", "hi", "--address", server.address)
    assert done.stderr == "error: no [/bold] move\n"


def test_status(server: FakeServer) -> None:
    server.status.executor_busy_share = 0.987
    server.status.host_lead_ms, server.status.step_gap_ms_max = 3.14159, 0.0123456
    shown = run("status", "--address", server.address)
    assert shown.exit_code == 0
    rows = {line.split("  ")[0].strip(): line for line in shown.stdout.splitlines()}
    assert rows["policy"].split()[-1] == "fcfs"
    assert rows["name"].split()[-1] == "fake"
    assert rows["executor busy share"].split()[-1] == "99%"
    assert rows["host lead ms"].split()[-1] == "3.14"
    assert rows["step gap ms max"].split()[-1] == "0.0123"
    facts = json.loads(run("status", "--json", "--address", server.address).stdout)
    assert (facts["ready"], facts["vocab_size"]) == (True, 64)
    checked = run("status", "--check", "--address", server.address)
    assert (checked.exit_code, checked.output) == (0, "")


@pytest.mark.parametrize("prompt", ["-", "ab\udcff"])
def test_a_prompt_that_is_no_text_is_said_so(server: FakeServer, prompt: str) -> None:
    done = run("generate", prompt, "--address", server.address, stdin=b"ab\xff")
    assert (done.exit_code, done.stderr) == (
        2,
        "error: the prompt is not UTF-8: its byte 2 is 0xff\n",
    )
    assert not server.requests


def test_status_of_a_server_that_is_not_ready(server: FakeServer) -> None:
    server.status.ready = False
    server.status.reason = "no executor is attached"
    shown = run("status", "--address", server.address)
    assert shown.exit_code == 3
    assert "no executor is attached" in shown.stdout
    checked = run("status", "--check", "--address", server.address)
    assert (checked.exit_code, checked.stderr) == (3, "error: not ready: no executor is attached\n")


def test_chat_remembers_and_ends_with_the_input(server: FakeServer) -> None:
    done = run("chat", "--address", server.address, stdin="one\n\ntwo\n")
    assert (done.exit_code, done.stdout) == (0, "Hello!\nHello!\n")
    assert [(m.role, m.content) for m in server.requests[1].chat.messages] == [
        ("user", "one"),
        ("assistant", "Hello!"),
        ("user", "two"),
    ]


def test_chat_goes_on_after_a_refused_turn() -> None:
    refused = [Abort(grpc.StatusCode.INVALID_ARGUMENT, "too long", reason="TOO_LONG")]
    with FakeServer(refused, ANSWER) as server:
        done = run("chat", "--address", server.address, stdin="one\ntwo\n")
        assert [m.content for m in server.requests[1].chat.messages] == ["two"]
    assert done.exit_code == 0
    assert "error: too long" in done.stderr


def test_serve_without_the_server_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "SERVER_PARTS", ("zmq", "no_such_part"))
    for command in ("serve", "demo"):
        done = run(command)
        assert done.exit_code == 2
        assert "there is no no_such_part" in done.stderr
        assert "pip install 'twostroke[server]'" in done.stderr
