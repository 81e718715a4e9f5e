"""The server around the services: drain, health, reflection, addresses."""

import asyncio
import os
import socket
from pathlib import Path
from typing import cast

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from frontend_svc.address import AddressError
from frontend_svc.health import SERVICES
from frontend_svc.place import Place
from frontend_svc.server import Frontend
from frontend_svc.settings import Settings
from frontend_svc.tokenizer import TokenizerError
from svc_shell.presence import holder, is_held, is_serving, is_up
from svc_wire.errors import LockHeld
from svc_wire.ids import FinishReason
from svc_wire.rundir import RunDir
from tests.support import tokenizers
from tests.support.fake_scheduler import FakeScheduler, status
from tests.support.frontend import (
    NOON,
    frontend_alone,
    in_loop,
    next_message,
    private_dir,
    receive,
    running,
    serving,
    until,
)
from twostroke.v1 import generation_pb2 as pb

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def health_of(channel: grpc.aio.Channel, service: str = "") -> int:
    stub = health_pb2_grpc.HealthStub(channel)
    request = health_pb2.HealthCheckRequest(service=service)
    return cast("int", (await stub.Check(request, wait_for_ready=True)).status)


# -- health ----------------------------------------------------------------------------------------


@in_loop
async def test_health_is_the_truth_about_every_service() -> None:
    assert set(SERVICES) == {"twostroke.v1.GenerationService", "twostroke.v1.ModelService"}
    with private_dir() as run_dir:
        async with (
            frontend_alone(run_dir) as (_, address),
            grpc.aio.insecure_channel(address) as channel,
        ):
            for service in ("", *SERVICES):
                assert await health_of(channel, service) == NOT_SERVING
            with pytest.raises(grpc.aio.AioRpcError) as unknown:
                await health_of(channel, "nonsense")
            assert unknown.value.code() is grpc.StatusCode.NOT_FOUND


@in_loop
async def test_health_follows_the_scheduler_at_once() -> None:
    with private_dir() as run_dir:
        async with running(run_dir) as it:
            watch = health_pb2_grpc.HealthStub(it.channel).Watch(
                health_pb2.HealthCheckRequest(service=SERVICES[0])
            )
            seen = [(await watch.read()).status]
            await it.scheduler.tell(status(ready=False, reason="no executor is ready"))
            seen.append((await watch.read()).status)
            await it.scheduler.tell(status())
            seen.append((await watch.read()).status)
            await it.scheduler.close()
            seen.append((await watch.read()).status)
            assert seen == [SERVING, NOT_SERVING, SERVING, NOT_SERVING]
            watch.cancel()


# -- reflection ------------------------------------------------------------------------------------


def test_reflection_tells_what_is_served() -> None:
    @in_loop
    async def ask() -> None:
        with private_dir() as run_dir:
            async with frontend_alone(run_dir) as (_, address):
                # The standard client of reflection blocks.
                found = await asyncio.to_thread(_reflected, address)
                assert {*SERVICES, "grpc.health.v1.Health"} <= set(found)

    ask()


def _reflected(address: str) -> list[str]:
    with grpc.insecure_channel(address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        services = list(database.get_services())
        file = database.FindFileContainingSymbol(SERVICES[0])
        assert "GenerateRequest" in [message.name for message in file.message_type]
        return services


# -- the drain -------------------------------------------------------------------------------------


@in_loop
async def test_a_drain_lets_streams_finish_and_refuses_new_ones() -> None:
    with private_dir() as run_dir:
        async with running(run_dir, lambda _: None, settings=Settings(drain_timeout_s=20)) as it:
            call = it.generate(pb.GenerateRequest(text="x"))
            [key] = await it.scheduler.submitted()
            await it.scheduler.tokens(key, b"a")
            first = await next_message(call)
            it.frontend.stop()
            await until(lambda: it.frontend.backend.is_draining)
            assert await health_of(it.channel) == NOT_SERVING
            refused = await receive(it.generate(pb.GenerateRequest(text="y")))
            assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
            assert refused.retry_s is not None
            await it.scheduler.tokens(key, b"b", FinishReason.LENGTH)
            assert (await receive(call, first)).text == "ab"
            await until(lambda: not (run_dir / "frontend.address").exists())


@in_loop
async def test_a_drain_ends_in_time() -> None:
    with private_dir() as run_dir:
        async with running(run_dir, lambda _: None, settings=Settings(drain_timeout_s=0.2)) as it:
            call = it.generate(pb.GenerateRequest(text="x"))
            [key] = await it.scheduler.submitted()
            it.frontend.stop()
            got = await receive(call)
            assert (got.code, got.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
            await it.scheduler.until(lambda: it.scheduler.detaches == 1)
            assert not it.scheduler.aborts, "its client may go on with it elsewhere"
            assert key in it.scheduler.live


@in_loop
async def test_an_answer_that_cannot_be_resumed_is_aborted_at_the_end_of_the_drain() -> None:
    request = pb.GenerateRequest(text="x", output=pb.OutputOptions(token_ids=False))
    with private_dir() as run_dir:
        async with running(run_dir, lambda _: None, settings=Settings(drain_timeout_s=0.2)) as it:
            call = it.generate(request)
            [key] = await it.scheduler.submitted()
            it.frontend.stop()
            assert (await receive(call)).reason == "DRAINING"
            await it.scheduler.until(lambda: it.scheduler.detaches == 1)
            assert it.scheduler.aborts == {key: FinishReason.ABORT}


@in_loop
async def test_a_second_stop_ends_the_drain() -> None:
    with private_dir() as run_dir:
        async with running(run_dir, lambda _: None, settings=Settings(drain_timeout_s=3600)) as it:
            call = it.generate(pb.GenerateRequest(text="x"))
            await it.scheduler.submitted()
            it.frontend.stop()
            await until(lambda: it.frontend.backend.is_draining)
            it.frontend.stop()
            assert (await receive(call)).reason == "DRAINING"


# -- the models' service ---------------------------------------------------------------------------


@in_loop
async def test_what_the_model_service_tells() -> None:
    with private_dir() as run_dir:
        async with running(run_dir) as it:
            info = await it.models.GetModelInfo(pb.GetModelInfoRequest())
            assert info == pb.GetModelInfoResponse(
                name="fake",
                sequence_length_max=100,
                vocab_size=300,
                eos_token_ids=[256],
                dtype="none",
                device="none",
                has_chat_template=False,
            )
            # Each answer is fresh, and none waits for a heartbeat, of which there is one a second.
            async with asyncio.timeout(4):
                for steps in range(8):
                    it.scheduler.status = status(steps=steps)
                    told = await it.models.GetServerStatus(pb.GetServerStatusRequest())
                    assert told.steps == steps
            it.scheduler.status = status(steps=99)
            told = await it.models.GetServerStatus(pb.GetServerStatusRequest())
            assert told == pb.GetServerStatusResponse(
                ready=True,
                policy="fake",
                depth=1,
                waiting=2,
                running=3,
                blocks_total=40,
                blocks_free=30,
                steps=99,
                output_tokens=7,
                preemptions=1,
                swaps_out=6,
                swaps_in=5,
                epochs_lost=9,
                executor_busy_share=0.5,
                host_lead_ms=3.0,
                step_gap_ms=0.02,
                step_gap_ms_max=0.09,
            )


@in_loop
async def test_the_model_service_answers_without_a_scheduler() -> None:
    with private_dir() as run_dir:
        async with running(run_dir) as it:
            await it.scheduler.close()
            await serving(it.models, ready=False)
            told = await it.models.GetServerStatus(pb.GetServerStatusRequest())
            assert "scheduler" in told.reason
            info = await it.models.GetModelInfo(pb.GetModelInfoRequest())
            assert info.name == "fake", "what was served is still known"


@in_loop
async def test_a_chat_through_a_model_folder() -> None:
    with private_dir() as run_dir:
        folder = run_dir / "model"
        folder.mkdir()
        tokenizers.save(
            tokenizers.byte_level(),
            folder,
            {"bos_token": tokenizers.BOS},
            "{{ messages[0].content }}!",
        )
        async with running(run_dir, settings=Settings(tokenizer=folder)) as it:
            info = await it.models.GetModelInfo(pb.GetModelInfoRequest())
            assert info.has_chat_template
            chat = pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content="hello wörld")])
            got = await receive(it.generate(pb.GenerateRequest(chat=chat)))
            assert got.text == "hello wörld!"


# -- what keeps it from serving --------------------------------------------------------------------


@in_loop
async def test_a_model_without_its_tokenizer_ends_the_process() -> None:
    with private_dir() as run_dir:
        async with FakeScheduler(run_dir):
            settings = Settings(port=0, tokenizer=run_dir / "nothing")
            frontend = Frontend(RunDir(run_dir), settings, lambda: NOON)
            with pytest.raises(ExceptionGroup) as caught:
                await frontend.run()
            assert caught.group_contains(TokenizerError, match="nothing")
            assert not (run_dir / "frontend.address").exists()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0.0.0.0", "localhost"])
@in_loop
async def test_an_address_in_use_is_said_to_be_in_use(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as taken, private_dir() as run_dir:
        taken.bind((host, 0))
        taken.listen()
        settings = Settings(host=host, port=taken.getsockname()[1])
        with pytest.raises(AddressError, match=r"cannot listen on .*: Address already in use"):
            await Frontend(RunDir(run_dir), settings, lambda: NOON).run()


@in_loop
async def test_two_front_ends_do_not_share_a_port() -> None:
    with private_dir() as run_dir:
        async with frontend_alone(run_dir) as (_, address):
            port = int(address.rpartition(":")[2])
            with pytest.raises(AddressError, match="in use"):
                await Frontend(RunDir(run_dir), Settings(port=port), lambda: NOON).run()
            async with grpc.aio.insecure_channel(address) as channel:
                assert await health_of(channel) == NOT_SERVING, "the first one goes on"
            assert (run_dir / "frontend.address").read_text() == f"{address}\n"


@in_loop
async def test_front_ends_that_are_told_to_share_a_port_do() -> None:
    with private_dir() as run_dir:
        async with running(run_dir) as it:
            await it.scheduler.tell(status(ready=False, reason="no executor is ready"))
            port = int(it.address.rpartition(":")[2])
            second = Frontend(RunDir(run_dir), Settings(port=port, shares_port=True), lambda: NOON)
            running_second = asyncio.create_task(second.run())
            await until(lambda: second.backend.link.is_up)
            assert not is_up(run_dir, "frontend-2"), "who would get to it would be refused"
            await it.scheduler.tell(status())
            await until(lambda: is_serving(run_dir, "frontend-2"))
            assert is_serving(run_dir, "frontend"), "each holds a lock of its own"
            second.stop()
            await running_second
            assert not is_up(run_dir, "frontend-2")
            assert (run_dir / "frontend.address").read_text() == f"{it.address}\n"
        assert not (run_dir / "frontend.address").exists(), "the last one removes it"


@in_loop
async def test_a_successor_takes_name_and_port_when_it_can_serve() -> None:
    with private_dir() as run_dir:
        async with running(run_dir, lambda _: None) as it:
            call = it.generate(pb.GenerateRequest(text="x"))
            [key] = await it.scheduler.submitted()
            await it.scheduler.tokens(key, b"a")
            first = await next_message(call)
            it.frontend.hand_over()
            await until(lambda: not is_held(run_dir / "frontend.lock"))
            settings = Settings(port=int(it.address.rpartition(":")[2]), shares_port=True)
            successor = Frontend(RunDir(run_dir), settings, lambda: NOON)
            running_successor = asyncio.create_task(successor.run())
            await until(lambda: is_serving(run_dir, "frontend"))
            # On the connection that has the stream, too: the old one has closed it to newcomers.
            assert await health_of(it.channel) == SERVING
            await it.scheduler.tokens(key, b"b", FinishReason.LENGTH)
            assert (await receive(call, first)).text == "ab", "what was running has come to its end"
            successor.stop()
            await running_successor


@pytest.mark.parametrize("serves", [True, False])
def test_what_a_front_end_shows(tmp_path: Path, serves: bool) -> None:
    run_dir = RunDir(tmp_path / "r")
    place = Place(run_dir, "")
    place.take()
    assert not is_up(run_dir.path, "frontend"), "it does not listen yet"
    place.show(serves=not serves)
    place.show(serves=serves)
    assert is_up(run_dir.path, "frontend")
    assert is_serving(run_dir.path, "frontend") is serves
    assert holder(run_dir.path, "frontend") == os.getpid()
    place.leave()
    place.show(serves=True)
    assert not is_up(run_dir.path, "frontend")
    assert holder(run_dir.path, "frontend") is None


def test_a_name_that_is_given_is_not_shared(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "r")
    place = Place(run_dir, "frontend-7")
    place.take()
    with pytest.raises(LockHeld, match="another frontend-7 runs"):
        Place(run_dir, "frontend-7").take()
    place.leave()


def test_an_address_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "r")
    place = Place(run_dir, "")
    (run_dir.path / "frontend.address").mkdir()
    with pytest.raises(AddressError, match=r"cannot write .*frontend\.address: Is a directory"):
        place.publish("a:1")
    assert [path.name for path in run_dir.path.iterdir()] == ["frontend.address"], "no draft"


@in_loop
async def test_a_host_that_is_none_is_said_to_be_none() -> None:
    with private_dir() as run_dir:
        settings = Settings(host="no.such.host.invalid", port=0)
        with pytest.raises(AddressError, match=r"cannot listen on no\.such\.host\.invalid:0"):
            await Frontend(RunDir(run_dir), settings, lambda: NOON).run()


@in_loop
async def test_a_socket_file_is_no_host() -> None:
    with private_dir() as run_dir:
        frontend = Frontend(RunDir(run_dir), Settings(host="unix:/x"), lambda: NOON)
        with pytest.raises(AddressError, match="a host name or an IP address is needed"):
            await frontend.run()


@pytest.mark.parametrize(
    ("host", "reached"), [("0.0.0.0", "127.0.0.1:"), ("::", "[::1]:"), ("::1", "[::1]:")]
)
@in_loop
async def test_the_address_file_holds_what_can_be_dialled(host: str, reached: str) -> None:
    with private_dir() as run_dir:
        async with frontend_alone(run_dir, Settings(host=host)) as (_, address):
            assert address.startswith(reached)
            async with grpc.aio.insecure_channel(address) as channel:
                assert await health_of(channel) == NOT_SERVING
