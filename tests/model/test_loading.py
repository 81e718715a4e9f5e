"""Folders that cannot be served are refused with one clear sentence."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from executor_svc.config import ExecutorConfig
from executor_svc.errors import ExecutorError, ModelNotUsable, OutOfMemory
from executor_svc.model import load_model
from executor_svc.torch_assembly import choose_dtype, find_capacity
from tests.tiny_model import EOS

pytestmark = pytest.mark.model


def _change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])


def _pickle_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "config is no JSON": (lambda f: (f / "config.json").write_text("{"), "not a valid JSON"),
    "config is a list": (lambda f: (f / "config.json").write_text("[]"), "not a model"),
    "unknown type": (lambda f: _change_config(f, model_type="nope"), "not a model"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "cannot load"),
    "weights are cut off": (_cut_weights, "cannot load"),
    "weights are pickled": (_pickle_weights, "cannot load"),
    "weights of another size": (lambda f: _change_config(f, hidden_size=32), "cannot load"),
    "weights are missing": (
        lambda f: _change_config(f, num_hidden_layers=5),
        r"18 weights are missing, model\.layers\.3\.",
    ),
}


@pytest.mark.parametrize("what", SPOILT)
def test_spoilt_folders(tiny_folder: Path, tmp_path: Path, what: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder, folder)
    spoil, sentence = SPOILT[what]
    spoil(folder)
    with pytest.raises(ModelNotUsable, match=sentence) as refusal:
        load_model(folder, torch.float32, torch.device("cpu"))
    assert "\n" not in str(refusal.value)


def test_what_is_found_in_a_good_folder(tiny_folder: Path) -> None:
    model = load_model(tiny_folder, torch.bfloat16, torch.device("cpu"))
    assert (model.vocab_size, model.model_len_max, model.eos_ids) == (261, 2048, (EOS,))
    assert (model.dtype, model.path) == (torch.bfloat16, str(tiny_folder))
    # Weights are cast, the rotary frequencies are not.
    assert model.module.model.rotary_emb.inv_freq.dtype == torch.float32


def test_several_end_tokens_of_the_generation_config(tiny_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder, folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [4, 2, 9]}))
    assert load_model(folder, torch.float32, torch.device("cpu")).eos_ids == (4, 2, 9)


def test_capacity_follows_memory_and_limits(tiny_folder: Path) -> None:
    model = load_model(tiny_folder, torch.float32, torch.device("cpu"))
    block_bytes = 3 * 2 * (16 + 16) * 4 * 8

    def capacity(**asked: int) -> tuple[int, int]:
        found = find_capacity(ExecutorConfig(model="m", block_size=8, **asked), model)  # type: ignore[arg-type]
        return found.num_blocks, found.model_len_max

    assert capacity(kv_memory_bytes=10 * block_bytes + 1) == (10, 2048)
    assert capacity(num_blocks=7, kv_memory_bytes=1) == (7, 2048)
    assert capacity(rows_max=2, model_len_max=64) == (2 * 2 * 8, 64)
    assert capacity(num_blocks=7, model_len_max=4096) == (7, 2048)
    with pytest.raises(ExecutorError, match="does not hold one KV block"):
        capacity(kv_memory_bytes=block_bytes - 1)
    with pytest.raises(OutOfMemory, match="lower --kv-memory"):
        capacity(num_blocks=1 << 33)


def test_number_formats() -> None:
    cpu = torch.device("cpu")
    assert choose_dtype("auto", cpu) == torch.float32
    assert choose_dtype("bfloat16", cpu) == torch.bfloat16
    with pytest.raises(ExecutorError, match="none of: auto, float32"):
        choose_dtype("int4", cpu)
