"""The executor process with a model: it answers while it loads, and computes what it should."""

import random
import signal
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from svc_wire.executor_link import PROTOCOL_VERSION, Beat, Hello, Welcome
from tests.model.greedy import greedy
from tests.support.executor_client import ExecutorProcess, Peer, RemoteRunner
from tests.support.planner import Job, Planner
from tests.tiny_model import EOS, save_tiny_model

pytestmark = [pytest.mark.process, pytest.mark.model]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


def test_a_scheduler_hears_beats_while_the_model_loads(run_dir: Path, folder: Path) -> None:
    with (
        ExecutorProcess(run_dir, "--model", str(folder), "--served-name", "tiny") as executor,
        Peer(executor.run_dir.executor_endpoint) as peer,
    ):
        peer.send(Hello(PROTOCOL_VERSION, 5))
        assert peer.receive() == Beat(0, 0)
        welcome = peer.receive_no_beat()
        assert isinstance(welcome, Welcome)
        assert welcome.epoch == 6
        model = welcome.model
        assert (model.name, model.path, model.eos_ids) == ("tiny", str(folder), (EOS,))
        assert (model.dtype, model.device) == ("float32", "cpu")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_it_can_be_stopped_while_the_model_loads(
    run_dir: Path, folder: Path, signum: signal.Signals
) -> None:
    with (
        ExecutorProcess(run_dir, "--model", str(folder)) as executor,
        Peer(executor.run_dir.executor_endpoint) as peer,
    ):
        peer.send(Hello(PROTOCOL_VERSION, 0))
        assert peer.receive() == Beat(0, 0)
        assert executor.end(signum) == 0
        assert not list(run_dir.glob("*.sock"))


def test_tokens_equal_plain_greedy(run_dir: Path, folder: Path) -> None:
    rng = random.Random(0)
    jobs = [
        Job([rng.randrange(5, 261) for _ in range(rng.randint(1, 60))], 20, stop_ids=(EOS,))
        for _ in range(6)
    ]
    options = ("--num-blocks", "40", "--block-size", "8", "--tokens-max", "50", "--threads", "1")
    with (
        ExecutorProcess(run_dir, "--model", str(folder), *options) as executor,
        Peer(executor.run_dir.executor_endpoint) as peer,
    ):
        outputs = Planner(RemoteRunner(peer), jobs, depth=2, chunk_max=20).run()
        assert executor.end() == 0
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    assert outputs == [greedy(plain, j.prompt, j.max_tokens, j.stop_ids) for j in jobs]


def test_a_model_that_cannot_be_loaded_ends_the_process(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "nope"}')
    with ExecutorProcess(run_dir, "--model", str(tmp_path)) as executor:
        assert executor.process.wait(60.0) == 1
        assert "is not a model that transformers knows" in executor.log
        assert "Traceback" not in executor.log
