"""What was asked of an executor. What was found is svc_wire.capacity.Capacity."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorConfig:
    """None stands for "choose for me"."""

    model: str
    """"hash", "smollm2", a local folder, or a name on the Hugging Face hub."""
    served_name: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    rows_max: int | None = None
    tokens_max: int | None = None
    model_len_max: int | None = None
    block_size: int = 16
    num_blocks: int | None = None
    kv_memory_bytes: int | None = None
    """Memory for the KV cache, if num_blocks is None."""
    swap_bytes: int | None = None
    """Host memory for KV of pre-empted sequences, if host_blocks is None; 0: none."""
    host_blocks: int | None = None
    """The same in KV blocks."""
    load_format: str = "auto"
    """"auto" reads the weights; "dummy" makes them up, for benchmarks."""
    attention: str = "auto"
    """CUDA only: "auto", "flashinfer" or "triton"."""
    trace: Path | None = None
    """A file that every step's timing is appended to; see tracing.py."""
    record: Path | None = None
    """A new file for all plans and results; see recording.py."""
    record_bytes: int = 1 << 30
    """Bound of that file."""
    record_redacted: bool = False
    """Leave tokens out of it."""
    threads: int | None = None
    step_ms: float = 0.0
    """Hash runner only: how long a step takes."""
    fail_seed: int | None = None
    kill_seed: int | None = None
    """For tests: requests that break the executor; see sabotage.py."""
