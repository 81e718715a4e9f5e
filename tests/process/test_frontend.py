"""The front end as a process of its own, with a fake scheduler: start, stop, limits, costs."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import grpc
import grpc.aio
import psutil
import pytest

from svc_wire.capacity import ModelInfo
from svc_wire.frontend_link import Submit
from tests.support.fake_scheduler import FakeScheduler, prompt_of
from tests.support.frontend import generation_stub, in_loop, receive, until
from tests.support.tokenizers import byte_level, save
from twostroke.v1 import generation_pb2 as pb

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
END_S = 20.0
EXIT_USAGE = 2


def command(run_dir: Path) -> list[str]:
    return [sys.executable, "-m", "frontend_svc", "--run-dir", str(run_dir), "--port", "0"]


@contextmanager
def frontend(run_dir: Path, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """A front end on any free port; killed at the end if it still runs."""
    process = subprocess.Popen(
        [*command(run_dir), *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "protos"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def frontend_of_a_parent(run_dir: Path) -> tuple["subprocess.Popen[str]", psutil.Process]:
    """A process that starts a front end and sleeps, and that front end."""
    program = (
        "import os, subprocess, sys, time\n"
        "os.environ['TWOSTROKE_PARENT_PID'] = str(os.getpid())\n"
        "print(subprocess.Popen(sys.argv[1:]).pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, *command(run_dir)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "protos"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert parent.stdout is not None
    return parent, psutil.Process(int(parent.stdout.readline()))


async def address_of(run_dir: Path) -> str:
    path = run_dir / "frontend.address"
    return await until(lambda: path.read_text().strip() if path.exists() else None)


@asynccontextmanager
async def channel_to(run_dir: Path) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(await address_of(run_dir)) as channel:
        yield channel


async def generate_when_ready(channel: grpc.aio.Channel, text: str) -> str:
    """The answer, from the moment that requests are taken."""
    for _ in range(500):
        got = await receive(generation_stub(channel).Generate(pb.GenerateRequest(text=text)))
        if got.code is grpc.StatusCode.OK:
            return got.text
        assert got.code is grpc.StatusCode.UNAVAILABLE, got.details
        await asyncio.sleep(0.02)
    raise AssertionError("it never served")


def ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
    """Exit status and log."""
    _, log = process.communicate(timeout=END_S)
    return process.returncode, log


@pytest.mark.parametrize("scheduler_first", [True, False])
@in_loop
async def test_it_starts_before_or_after_the_scheduler_and_stops_cleanly(
    run_dir: Path,
    scheduler_first: bool,
) -> None:
    with frontend(run_dir) as process:
        if not scheduler_first:
            await address_of(run_dir)
        async with FakeScheduler(run_dir) as fake, channel_to(run_dir) as channel:
            assert await generate_when_ready(channel, "hello") == "hello"
            process.send_signal(signal.SIGTERM)
            code, log = await asyncio.to_thread(ended, process)
            await fake.until(lambda: fake.detaches == 1)
        assert code == 0, log
        assert "waiting for the scheduler" in log
        assert not (run_dir / "frontend.address").exists()


@in_loop
async def test_sigterm_lets_a_stream_finish(run_dir: Path) -> None:
    with frontend(run_dir) as process:
        async with FakeScheduler(run_dir) as fake, channel_to(run_dir) as channel:
            await generate_when_ready(channel, "x")
            fake.answer = lambda _: None
            call = generation_stub(channel).Generate(pb.GenerateRequest(text="x"))
            [key] = await fake.submitted()
            process.send_signal(signal.SIGTERM)
            await fake.outputs(key, range(3), b"abc", None)
            await asyncio.sleep(0.1)
            assert process.poll() is None
            process.send_signal(signal.SIGTERM)  # enough: the second one ends the drain
            got = await receive(call)
            assert (got.text, got.reason) == ("abc", "DRAINING")
            assert (await asyncio.to_thread(ended, process))[0] == 0


def test_a_port_in_use_is_one_clear_sentence(run_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with frontend(run_dir, "--port", str(port)) as process:
            code, log = ended(process)
    assert code == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in log
    assert "Traceback" not in log


def test_a_run_directory_of_others_is_refused(run_dir: Path) -> None:
    run_dir.chmod(0o777)
    with frontend(run_dir) as process:
        code, log = ended(process)
    assert code == 1
    assert "mode 0700" in log
    assert "Traceback" not in log


@in_loop
async def test_a_model_folder_without_a_tokenizer_is_one_clear_sentence(run_dir: Path) -> None:
    model = ModelInfo(name="m", path="/nowhere", eos_ids=(), dtype="", device="")
    with frontend(run_dir) as process:
        async with FakeScheduler(run_dir, model=model):
            code, log = await asyncio.to_thread(ended, process)
    assert code == 1
    assert "cannot read the tokenizer /nowhere/tokenizer.json" in log
    assert "Traceback" not in log


@in_loop
async def test_it_goes_when_its_parent_is_killed(run_dir: Path) -> None:
    parent, child = frontend_of_a_parent(run_dir)
    try:
        await address_of(run_dir)
    finally:
        parent.kill()
        parent.communicate()
    _, alive = await asyncio.to_thread(psutil.wait_procs, [child], END_S)
    assert not alive
    assert not (run_dir / "frontend.address").exists()


@in_loop
async def test_idle_it_costs_nothing(run_dir: Path) -> None:
    with frontend(run_dir) as process:
        async with FakeScheduler(run_dir), channel_to(run_dir) as channel:
            await generate_when_ready(channel, "x")
            cpu = psutil.Process(process.pid)
            before, begin = cpu.cpu_times(), time.monotonic()
            await asyncio.sleep(3)
            after, seconds = cpu.cpu_times(), time.monotonic() - begin
            used = after.user + after.system - before.user - before.system
            assert used / seconds < 0.02


@pytest.mark.slow
@in_loop
async def test_ten_thousand_requests_leave_no_memory_behind(run_dir: Path) -> None:
    """Answered, cancelled and refused ones, with text, stop strings and errors."""

    def answer(submit: Submit) -> list[int]:
        return prompt_of(submit)[:20]

    with frontend(run_dir) as process:
        async with FakeScheduler(run_dir, answer) as fake, channel_to(run_dir) as channel:
            await generate_when_ready(channel, "x")
            stub = generation_stub(channel)

            async def one(index: int) -> None:
                stop = pb.StopCriteria(strings=["zz", "ö"], max_tokens=index % 5)
                call = stub.Generate(pb.GenerateRequest(text=f"hello {index} wörld", stop=stop))
                if index % 7 == 0:
                    call.cancel()
                else:
                    await receive(call)

            async def many(count: int) -> int:
                for begin in range(0, count, 100):
                    await asyncio.gather(*map(one, range(begin, begin + 100)))
                fake.submits.clear()
                return int(psutil.Process(process.pid).memory_full_info().uss)

            warm = await many(3_000)
            grown = await many(10_000) - warm
            # The allocator's own waves are some per cent; a request that stays costs kilobytes.
            assert grown < 0.1 * warm, f"{grown} bytes over {warm}"
            assert not fake.live


def test_a_check_of_the_options_looks_at_the_tokenizer(run_dir: Path, tmp_path: Path) -> None:
    def check(folder: Path) -> tuple[int, str]:
        words = [*command(run_dir), "--check", "--tokenizer", str(folder)]
        env = os.environ | {"TYPER_USE_RICH": "0"}  # lines are not broken
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stderr

    assert check(save(byte_level(), tmp_path)) == (0, "")
    status, said = check(tmp_path / "none")
    assert status == EXIT_USAGE
    assert f"cannot read the tokenizer {tmp_path}/none/tokenizer.json" in said
    assert not list(run_dir.iterdir())
