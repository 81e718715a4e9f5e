"""Makes a runner around a transformers model: chooses the number format and the sizes."""

import os
import sys
from pathlib import Path

import torch

from executor_svc.config import ExecutorConfig
from executor_svc.errors import ExecutorError, OutOfMemory
from executor_svc.host_blocks import find_host_blocks
from executor_svc.host_memory import available_bytes
from executor_svc.kv_cache import block_bytes
from executor_svc.model import DTYPES, CausalModel, hide_progress_bars, load_model
from executor_svc.packed_linear import pack_linears
from executor_svc.runner import Runner
from executor_svc.self_check import check_against, reference_logits
from executor_svc.torch_runner import TorchRunner
from svc_wire.capacity import Capacity

CPU_ROWS_MAX = 32
CPU_TOKENS_MAX = 512
CPU_KV_MEMORY_BYTES = 1 << 30


def make_torch_runner(config: ExecutorConfig, folder: Path) -> Runner:
    """Raises ExecutorError."""
    device = torch.device("cpu")
    torch.set_num_threads(config.threads or default_threads())
    if not sys.stderr.isatty():
        hide_progress_bars()
    model = load_model(folder, choose_dtype(config.dtype, device), device)
    reference = reference_logits(model)
    pack_linears(model.module)
    check_against(model, reference)
    return TorchRunner(model, find_capacity(config, model), config.served_name or config.model)


def default_threads() -> int:
    """All CPUs but one, which the other services share.

    A busy neighbour on the last CPU makes every parallel region wait for it.
    """
    return max(1, len(os.sched_getaffinity(0)) - 1)


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """Raises ExecutorError."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if name not in DTYPES:
        raise ExecutorError(f"--dtype {name!r} is none of: auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def find_capacity(config: ExecutorConfig, model: CausalModel) -> Capacity:
    """Sizes that the model and the memory allow. Raises ExecutorError."""
    rows_max = config.rows_max or CPU_ROWS_MAX
    model_len_max = min(model.model_len_max, config.model_len_max or model.model_len_max)
    each = block_bytes(model.layers, config.block_size, model.dtype)
    lanes = 2 * rows_max
    useful = lanes * -(-model_len_max // config.block_size)
    kv_memory_bytes = config.kv_memory_bytes or CPU_KV_MEMORY_BYTES
    num_blocks = config.num_blocks or min(kv_memory_bytes // each, useful)
    if num_blocks < 1:
        raise ExecutorError(
            f"--kv-memory of {kv_memory_bytes} bytes does not hold one KV block, "
            f"which takes {each} bytes"
        )
    needed, available = num_blocks * each, available_bytes()
    if needed > available:
        raise OutOfMemory(
            f"the KV cache needs {needed >> 20} MiB, of which {available >> 20} MiB are available: "
            f"lower --kv-memory or --num-blocks"
        )
    # None unless asked for: KV is in host memory already.
    host_blocks, block_copy_ns = find_host_blocks(config, each, useful, model.device, 0)
    try:
        return Capacity(
            num_blocks=num_blocks,
            block_size=config.block_size,
            rows_max=rows_max,
            tokens_max=max(rows_max, config.tokens_max or CPU_TOKENS_MAX),
            lanes=lanes,
            model_len_max=model_len_max,
            vocab_size=model.vocab_size,
            host_blocks=host_blocks,
            block_copy_ns=block_copy_ns,
        )
    except ValueError as error:
        raise ExecutorError(str(error)) from error
