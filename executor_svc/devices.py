"""Which device an executor computes on."""

import torch

from executor_svc.errors import ExecutorError


def choose_device(name: str) -> torch.device:
    """ "auto" is a CUDA device where torch sees one, else the CPU. Raises ExecutorError."""
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ExecutorError(f"--device {name!r} is none of: auto, cpu, cuda, cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise ExecutorError(f"--device {name!r} is none of: auto, cpu, cuda, cuda:N")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ExecutorError(f"--device {name}: torch sees no CUDA device")
    return torch.device("cuda:0") if name == "cuda" else device
