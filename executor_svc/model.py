"""A transformers causal LM as the executor uses it, and the checks that it may be used so.

`Any` stops here: transformers' classes are not typed, `CausalModel` is. A family passes if it
routes every layer's attention through ours and nothing else mixes tokens. What does not pass is
refused with the reason: the failure would be silent otherwise, with sequences that attend to each
other.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.utils import logging as transformers_logging

from executor_svc import attention
from executor_svc.attention import LayerCall, LayerShape, attending
from executor_svc.errors import ModelNotUsable, UnsupportedModel
from svc_wire.ids import STOP_IDS_MAX

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# What transformers raises about a folder's content, which may be anything.
_LOADER_ERRORS = (
    OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError, SafetensorError
)  # fmt: skip
_LAYER_TYPES = {"full_attention", "sliding_attention"}


@dataclass(frozen=True, slots=True, eq=False)
class CausalModel:
    """A model that was accepted, in evaluation mode on its device."""

    module: Any
    """The transformers model; its attention goes to whatever `attending` has made current."""
    layers: tuple[LayerShape, ...]
    vocab_size: int
    model_len_max: int
    """Most positions that the model was made for."""
    eos_ids: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    path: str
    """Local folder with tokenizer and chat template; empty for a model made in code."""

    def forward(self, token_ids: Tensor, positions: Tensor, keep: Tensor) -> Tensor:
        """Logits [S, vocab] of the tokens at the indices `keep` [S], for packed tokens [T].

        Must run inside `attending`.
        """
        out = self.module(
            input_ids=token_ids[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=keep,
        )
        logits: Tensor = out.logits[0]
        return logits


def hide_progress_bars() -> None:
    """For a process whose output is a log."""
    transformers_logging.disable_progress_bar()


def load_model(folder: Path, dtype: torch.dtype, device: torch.device) -> CausalModel:
    """Loads a local folder. Raises ModelNotUsable, UnsupportedModel."""
    config = read_config(folder)
    check_family(config)
    try:
        module, found = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation=attention.NAME,
            device_map=None if device.type == "cpu" else {"": device},
            local_files_only=True,
            use_safetensors=True,  # the other format is pickle
            output_loading_info=True,
        )
    except _LOADER_ERRORS as error:
        raise ModelNotUsable(f"cannot load the model in {folder}: {_first_line(error)}") from error
    if missing := sorted(found["missing_keys"]):
        raise ModelNotUsable(
            f"the model in {folder} is not complete: {len(missing)} weights are missing, "
            f"{missing[0]} among them"
        )
    return accept(module, path=str(folder))


def random_model(config: Any, dtype: torch.dtype, device: torch.device) -> CausalModel:
    """A model of this configuration with random weights. Raises UnsupportedModel."""
    check_family(config)
    with torch.device(device):
        module = AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation=attention.NAME
        )
    return accept(module, path="")


def read_config(folder: Path) -> Any:
    """The transformers configuration of a local folder. Raises ModelNotUsable."""
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True)
    except _LOADER_ERRORS as error:
        raise ModelNotUsable(
            f"{folder} is not a model that transformers knows: {_first_line(error)}"
        ) from error


def check_family(config: Any) -> None:
    """What a configuration alone tells. Raises UnsupportedModel."""
    kind = config.model_type
    model_class = AutoModelForCausalLM._model_mapping.get(type(config), None)
    if model_class is None:
        raise UnsupportedModel(kind, "transformers has no causal language model of this type")
    if isinstance(model_class, tuple):
        model_class = model_class[0]
    if not model_class._supports_attention_backend:
        raise UnsupportedModel(kind, "its attention cannot be replaced in transformers")
    foreign = set(getattr(config.get_text_config(), "layer_types", None) or ()) - _LAYER_TYPES
    if foreign:
        raise UnsupportedModel(kind, f"it has layers of type {', '.join(sorted(foreign))}")


def accept(module: Any, path: str) -> CausalModel:
    """Checks a model that was built with our attention. Raises UnsupportedModel."""
    module.eval()
    config = module.config.get_text_config()
    kind = module.config.model_type
    if module.config._attn_implementation != attention.NAME:
        raise UnsupportedModel(kind, "it does not take the attention function it is given")
    layers = _probe(module)
    parameter = next(module.parameters())
    return CausalModel(
        module=module,
        layers=layers,
        vocab_size=config.vocab_size,
        model_len_max=getattr(config, "max_position_embeddings", None) or 2048,
        eos_ids=_eos_ids(module),
        dtype=parameter.dtype,
        device=parameter.device,
        path=path,
    )


class _Probe:
    """An attention that only notes who calls it with what."""

    def __init__(self) -> None:
        self.shapes: dict[int, LayerShape] = {}
        self.calls: dict[int, int] = {}
        self.windows: dict[int, int | None] = {}

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: LayerCall) -> Tensor:
        self.windows[call.layer] = call.window
        self.calls[call.layer] = self.calls.get(call.layer, 0) + 1
        self.shapes[call.layer] = LayerShape(
            query.shape[1], key.shape[1], key.shape[2], value.shape[2]
        )
        return query.new_zeros(query.shape[0], query.shape[1], value.shape[2])


@torch.inference_mode()
def _probe(module: Any) -> tuple[LayerShape, ...]:
    """Shapes of all layers, from a dry run over two tokens. Raises UnsupportedModel."""
    probe, config = _Probe(), module.config.get_text_config()
    ids = torch.zeros(1, 2, dtype=torch.int64, device=next(module.parameters()).device)
    positions = torch.arange(2, device=ids.device)[None]
    with attending(probe):
        module(input_ids=ids, position_ids=positions, use_cache=False)
    if reason := _objection(probe, config):
        raise UnsupportedModel(module.config.model_type, reason)
    return tuple(probe.shapes[index] for index in range(config.num_hidden_layers))


def _objection(probe: _Probe, config: Any) -> str:
    """What is wrong with the calls that were seen; empty if nothing is."""
    layers, seen = config.num_hidden_layers, sorted(probe.shapes)
    if seen != list(range(layers)):
        return f"only the layers {seen} of {layers} use the attention function"
    if any(count != 1 for count in probe.calls.values()):
        return "a layer attends more than once a step"
    types = getattr(config, "layer_types", None) or ["full_attention"] * layers
    for index, kind in enumerate(types[:layers]):
        if kind == "sliding_attention" and probe.windows[index] is None:
            return f"layer {index} has a sliding window, but does not tell the attention function"
    return ""


def _eos_ids(module: Any) -> tuple[int, ...]:
    generation: GenerationConfig | None = module.generation_config
    found = generation.eos_token_id if generation is not None else None
    if found is None:
        found = module.config.get_text_config().eos_token_id
    ids = [] if found is None else [found] if isinstance(found, int) else list(found)
    if len(ids) > STOP_IDS_MAX:
        raise UnsupportedModel(
            module.config.model_type,
            f"it has {len(ids)} end-of-sequence ids, at most {STOP_IDS_MAX} are possible",
        )
    return tuple(int(token) for token in ids)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
