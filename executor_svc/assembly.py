"""Makes the runner that a configuration asks for. torch is imported only where it is needed."""

import time

import structlog

from executor_svc.config import ExecutorConfig
from executor_svc.errors import ExecutorError
from executor_svc.hash_runner import CELL_BYTES, HashRunner
from executor_svc.model_source import find_model
from executor_svc.recording import RecordedRunner
from executor_svc.runner import Runner
from executor_svc.sabotage import SabotagedRunner
from executor_svc.tracing import TracedRunner
from svc_wire.capacity import Capacity

HASH = "hash"
HASH_VOCAB = 257
"""One token a byte, and the end-of-sequence token."""
HASH_MODEL_LEN_MAX = 8192
HASH_BLOCKS = 16384

log = structlog.get_logger(service="executor")


def make_runner(config: ExecutorConfig) -> Runner:
    """Raises ExecutorError."""
    begin = time.monotonic()
    log.info("loading", model=config.model)
    runner = _hash_runner(config) if config.model == HASH else _torch_runner(config)
    if config.fail_seed is not None or config.kill_seed is not None:
        runner = SabotagedRunner(runner, fail_seed=config.fail_seed, kill_seed=config.kill_seed)
    if config.trace is not None:
        runner = TracedRunner(runner, config.trace)
    if config.record is not None:
        runner = RecordedRunner(
            runner, config.record, redacted=config.record_redacted, bytes_max=config.record_bytes
        )
    log.info(
        "ready",
        model=runner.model.name,
        device=runner.model.device,
        dtype=runner.model.dtype,
        blocks=runner.capacity.num_blocks,
        seconds=round(time.monotonic() - begin, 2),
    )
    return runner


def _hash_runner(config: ExecutorConfig) -> Runner:
    rows_max = config.rows_max or 256
    try:
        capacity = Capacity(
            num_blocks=config.num_blocks or HASH_BLOCKS,
            block_size=config.block_size,
            rows_max=rows_max,
            tokens_max=max(rows_max, config.tokens_max or 2048),
            lanes=2 * rows_max,
            model_len_max=config.model_len_max or HASH_MODEL_LEN_MAX,
            vocab_size=HASH_VOCAB,
            host_blocks=_hash_host_blocks(config),
            block_copy_ns=1,
        )
    except ValueError as error:
        raise ExecutorError(str(error)) from error
    return HashRunner(
        capacity,
        eos_ids=(HASH_VOCAB - 1,),
        name=config.served_name or HASH,
        step_ms=config.step_ms,
    )


def _hash_host_blocks(config: ExecutorConfig) -> int:
    if config.host_blocks is not None:
        return config.host_blocks
    return (config.swap_bytes or 0) // (config.block_size * CELL_BYTES)


def _torch_runner(config: ExecutorConfig) -> Runner:
    folder = find_model(config.model)
    # torch takes seconds to import: neither the hash runner nor a misspelt name should pay for it.
    from executor_svc.devices import choose_device

    device = choose_device(config.device)
    if device.type == "cuda":
        from executor_svc.cuda.assembly import make_cuda_runner

        return make_cuda_runner(config, folder, device)
    from executor_svc.torch_assembly import make_torch_runner

    return make_torch_runner(config, folder)
