"""The server around the services: health, reflection, drain, the model service."""

import asyncio
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from frontend_svc.health import SERVICES
from frontend_svc.server import Frontend
from frontend_svc.settings import Settings
from frontend_svc.tokenizer import TokenizerError
from svc_wire.ids import FinishReason
from svc_wire.rundir import RunDir
from tests.support import tokenizers
from tests.support.fake_scheduler import FakeScheduler, status
from tests.support.frontend import (
    NOON,
    NOT_SERVING,
    SERVING,
    begun,
    frontend_alone,
    health_of,
    in_loop,
    next_message,
    receive,
    running,
    serving,
    until,
)
from twostroke.v1 import generation_pb2 as pb

# -- health ----------------------------------------------------------------------------------------


@in_loop
async def test_health_is_the_truth_about_every_service(run_dir: Path) -> None:
    assert set(SERVICES) == {"twostroke.v1.GenerationService", "twostroke.v1.ModelService"}
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
async def test_health_follows_the_scheduler_at_once(run_dir: Path) -> None:
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


def test_reflection_tells_what_is_served(run_dir: Path) -> None:
    @in_loop
    async def ask() -> None:
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
async def test_a_drain_lets_streams_finish_and_refuses_new_ones(run_dir: Path) -> None:
    async with begun(run_dir, settings=Settings(drain_timeout_s=20)) as (it, call, key):
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
async def test_a_drain_ends_in_time(run_dir: Path) -> None:
    async with begun(run_dir, settings=Settings(drain_timeout_s=0.2)) as (it, call, key):
        it.frontend.stop()
        got = await receive(call)
        assert (got.code, got.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
        await it.scheduler.until(lambda: it.scheduler.detaches == 1)
        assert not it.scheduler.aborts, "its client may go on with it elsewhere"
        assert key in it.scheduler.live


@in_loop
async def test_an_answer_that_cannot_be_resumed_is_aborted_at_the_end_of_the_drain(
    run_dir: Path,
) -> None:
    request = pb.GenerateRequest(text="x", output=pb.OutputOptions(token_ids=False))
    async with running(run_dir, lambda _: None, settings=Settings(drain_timeout_s=0.2)) as it:
        call = it.generate(request)
        [key] = await it.scheduler.submitted()
        it.frontend.stop()
        assert (await receive(call)).reason == "DRAINING"
        await it.scheduler.until(lambda: it.scheduler.detaches == 1)
        assert it.scheduler.aborts == {key: FinishReason.ABORT}


@in_loop
async def test_a_second_stop_ends_the_drain(run_dir: Path) -> None:
    async with begun(run_dir, settings=Settings(drain_timeout_s=3600)) as (it, call, _):
        it.frontend.stop()
        await until(lambda: it.frontend.backend.is_draining)
        it.frontend.stop()
        assert (await receive(call)).reason == "DRAINING"


# -- the models' service ---------------------------------------------------------------------------


@in_loop
async def test_what_the_model_service_tells(run_dir: Path) -> None:
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
async def test_the_model_service_answers_without_a_scheduler(run_dir: Path) -> None:
    async with running(run_dir) as it:
        await it.scheduler.close()
        await serving(it.models, ready=False)
        told = await it.models.GetServerStatus(pb.GetServerStatusRequest())
        assert "scheduler" in told.reason
        info = await it.models.GetModelInfo(pb.GetModelInfoRequest())
        assert info.name == "fake", "what was served is still known"


@in_loop
async def test_a_chat_through_a_model_folder(run_dir: Path) -> None:
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


@in_loop
async def test_a_model_without_its_tokenizer_ends_the_process(run_dir: Path) -> None:
    async with FakeScheduler(run_dir):
        settings = Settings(port=0, tokenizer=run_dir / "nothing")
        frontend = Frontend(RunDir(run_dir), settings, lambda: NOON)
        with pytest.raises(ExceptionGroup) as caught:
            await frontend.run()
        assert caught.group_contains(TokenizerError, match="nothing")
        assert not (run_dir / "frontend.address").exists()
