"""Makes the CUDA runner that a configuration asks for."""

import dataclasses
from pathlib import Path

import structlog
import torch

from executor_svc.config import ExecutorConfig
from executor_svc.cuda.block_swap import STAGING_BYTES
from executor_svc.cuda.runner import CudaOptions, CudaRunner
from executor_svc.errors import ExecutorError, OutOfMemory
from executor_svc.host_blocks import find_host_blocks
from executor_svc.kv_cache import block_bytes
from executor_svc.model import DTYPES, CausalModel, load_model, random_model, read_config
from executor_svc.penalties import histories_bytes
from executor_svc.self_check import check_against, reference_logits
from svc_wire.capacity import Capacity

log = structlog.get_logger(service="executor")

ROWS_MAX = 256
TOKENS_MAX = 8192
SWAP_BYTES = 4 << 30
"""Host memory for pre-empted KV, unless another size is asked for."""
_MEMORY_SHARE = 0.9
"""Of what is free once the weights are there; the rest is for graphs and activations."""
_TOKEN_BYTES_FACTOR = 24
"""Activations of one token in a prefill step, in units of its hidden size."""


def make_cuda_runner(config: ExecutorConfig, folder: Path, device: torch.device) -> CudaRunner:
    """Raises ExecutorError."""
    for name, value, known in (
        ("--load-format", config.load_format, ("auto", "dummy")),
        ("--attention", config.attention, ("auto", "flashinfer", "triton")),
    ):
        if value not in known:
            raise ExecutorError(f"{name} {value!r} is none of: {', '.join(known)}")
    torch.cuda.set_device(device)
    model = _model(config, folder, device)
    capacity = _capacity(config, model)
    options = CudaOptions(attention=config.attention)
    try:
        runner = CudaRunner(model, capacity, config.served_name or config.model, options)
        runner.capture()
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise  # torch has several errors for lack of memory, by who found it lacking
        raise OutOfMemory(
            f"the device's memory does not hold the model, its KV cache and its graphs: "
            f"lower --kv-memory or --num-blocks ({str(error).splitlines()[0]})"
        ) from error
    return runner


def _model(config: ExecutorConfig, folder: Path, device: torch.device) -> CausalModel:
    if config.dtype != "auto" and config.dtype not in DTYPES:
        raise ExecutorError(f"--dtype {config.dtype!r} is none of: auto, {', '.join(DTYPES)}")
    dtype = torch.bfloat16 if config.dtype == "auto" else DTYPES[config.dtype]
    # Products in float32 must be float32's, or greedy tokens depend on the batch.
    torch.backends.cuda.matmul.allow_tf32 = False
    if config.load_format == "dummy":
        log.warning("the weights are random", folder=str(folder))
        model = random_model(read_config(folder), dtype, device)
        return dataclasses.replace(model, path=str(folder))
    model = load_model(folder, dtype, device)
    check_against(model, reference_logits(model))
    return model


def _capacity(config: ExecutorConfig, model: CausalModel) -> Capacity:
    rows_max = config.rows_max or ROWS_MAX
    tokens_max = max(rows_max, config.tokens_max or TOKENS_MAX)
    model_len_max = min(model.model_len_max, config.model_len_max or model.model_len_max)
    each = block_bytes(model.layers, config.block_size, model.dtype)
    lanes = 2 * rows_max
    useful = lanes * -(-model_len_max // config.block_size)
    host_blocks, block_copy_ns = find_host_blocks(config, each, useful, model.device, SWAP_BYTES)
    found = (config.kv_memory_bytes or _kv_bytes(model, rows_max, tokens_max, lanes)) // each
    num_blocks = config.num_blocks or min(found, useful)
    if num_blocks < 1:
        raise OutOfMemory(f"not one KV block of {each} bytes fits beside the model")
    try:
        return Capacity(
            num_blocks=num_blocks,
            block_size=config.block_size,
            rows_max=rows_max,
            tokens_max=tokens_max,
            lanes=lanes,
            model_len_max=model_len_max,
            vocab_size=model.vocab_size,
            host_blocks=host_blocks,
            block_copy_ns=block_copy_ns,
        )
    except ValueError as error:
        raise ExecutorError(str(error)) from error


def _kv_bytes(model: CausalModel, rows_max: int, tokens_max: int, lanes: int) -> int:
    """What the device has left for the KV cache."""
    free, _ = torch.cuda.mem_get_info(model.device)
    hidden = model.module.config.get_text_config().hidden_size
    # A prefill step holds about this many vectors of the hidden size a token (the widest is the
    # merged gate and up projection), and a sampling step a few copies of the logits in float32.
    activations = tokens_max * hidden * _TOKEN_BYTES_FACTOR * model.dtype.itemsize
    logits = 6 * 4 * rows_max * model.vocab_size
    histories = histories_bytes(lanes, model.vocab_size)
    beside = activations + logits + histories + 2 * STAGING_BYTES
    return max(0, int(free * _MEMORY_SHARE) - beside)
