"""A slot on a CUDA device, and the page-locked memory that plans come from."""

import mmap

import numpy as np
import torch
from torch import Tensor

from executor_svc.slots import Slot
from svc_wire.capacity import Capacity
from svc_wire.layout import HEADER, field_offset, plan_dtype
from svc_wire.record import Bytes


class DeviceSlot(Slot):
    """A slot whose step is prepared by kernels: they need the number of rows on the device."""

    def __init__(self, capacity: Capacity, device: torch.device) -> None:
        super().__init__(capacity, device)
        rows_at = field_offset(HEADER, "rows")
        self.rows_word = self.plan_bytes[rows_at : rows_at + 4].view(torch.int32)  # [1]
        # Tokens in the last block of each row, derived by the first kernel of a step.
        self.last_page = torch.ones(capacity.rows_max, dtype=torch.int32, device=device)
        # row_token and row_status; together, so that they leave in one copy.
        self.result = torch.zeros(2, capacity.rows_max, dtype=torch.int32, device=device)


class PlanSource:
    """Plans as host tensors that a device can copy without staging.

    All frames lie in one mapping. It is registered with CUDA when the first plan comes from it.
    Where that is refused (a sandbox, a limit on locked memory) plans pass through page-locked
    buffers of our own, one a slot.
    """

    def __init__(self, capacity: Capacity) -> None:
        size = plan_dtype(capacity).itemsize
        self._staging = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        self._owner: object = None
        self._memory = torch.empty(0, dtype=torch.uint8)
        self.registered = False

    def host_bytes(self, raw: Bytes, slot: int) -> Tensor:
        """The plan's bytes. The caller must not reuse `slot` before they have been copied."""
        owner = _owner(raw)
        if owner is not self._owner:
            self.release()
            self._register(owner)
        if self.registered:
            start = raw.ctypes.data - self._memory.data_ptr()
            return self._memory[start : start + len(raw)]
        staging = self._staging[slot][: len(raw)]
        staging.numpy()[:] = raw
        return staging

    def _register(self, owner: object) -> None:
        self._owner = owner
        if not isinstance(owner, mmap.mmap):
            return  # only a mapping is page-aligned and stays where it is
        self._memory = torch.frombuffer(owner, dtype=torch.uint8)
        code = torch.cuda.cudart().cudaHostRegister(self._memory.data_ptr(), self._memory.nbytes, 0)
        self.registered = int(code) == 0

    def release(self) -> None:
        """Unregisters the mapping; nothing may be copying from it."""
        if self.registered:
            torch.cuda.cudart().cudaHostUnregister(self._memory.data_ptr())
        self.registered, self._owner = False, None
        self._memory = torch.empty(0, dtype=torch.uint8)


def _owner(raw: Bytes) -> object:
    """The object whose memory the bytes are."""
    base: object = raw
    while isinstance(base, np.ndarray):
        base = base.base
    return base.obj if isinstance(base, memoryview) else base
