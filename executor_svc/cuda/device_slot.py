"""A slot on a CUDA device, and the page-locked memory that plans come from."""

import mmap

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from executor_svc.logprobs import Measured
from executor_svc.recipe import Told
from executor_svc.slots import Slot
from svc_wire.capacity import Capacity
from svc_wire.frames import StepLogprobs
from svc_wire.ids import LOGPROBS_MAX
from svc_wire.layout import HEADER, field_offset, plan_dtype
from svc_wire.record import Bytes

RESULT_LINES = {Told.NONE: 2, Told.CHOSEN: 3, Told.TOP: 3 + 2 * LOGPROBS_MAX}
_TOP_IDS, _TOP = slice(3, 3 + LOGPROBS_MAX), slice(3 + LOGPROBS_MAX, None)


class DeviceSlot(Slot):
    """A slot whose step is prepared by kernels: they need the number of rows on the device."""

    def __init__(self, capacity: Capacity, device: torch.device) -> None:
        super().__init__(capacity, device)
        rows_at = field_offset(HEADER, "rows")
        self.rows_word = self.plan_bytes[rows_at : rows_at + 4].view(torch.int32)  # [1]
        # Tokens in the last block of each row, derived by the first kernel of a step.
        self.last_page = torch.ones(capacity.rows_max, dtype=torch.int32, device=device)
        # A line a fact: row_token, row_status, and log-probabilities as bits. What a step tells is
        # a prefix of the lines, which leaves in one copy.
        lines = RESULT_LINES[Told.TOP]
        self.result = torch.zeros(lines, capacity.rows_max, dtype=torch.int32, device=device)
        self.told = {told: self.result[:lines] for told, lines in RESULT_LINES.items()}

    def tell(self, chosen: Tensor, measured: Measured) -> None:
        """Puts log-probabilities of B rows into the result."""
        rows = slice(len(chosen))
        self.result[2, rows] = chosen.view(torch.int32)
        if measured.top.shape[1]:
            self.result[_TOP_IDS, rows] = measured.top_ids.T
            self.result[_TOP, rows] = measured.top.view(torch.int32).T


def read_logprobs(lines: npt.NDArray[np.int32]) -> StepLogprobs | None:
    """What a step told of R rows beside tokens and statuses, from its lines [L, R] on the host."""
    if len(lines) == RESULT_LINES[Told.NONE]:
        return None
    bits = lines.view(np.float32)
    return StepLogprobs(bits[2], lines[_TOP_IDS].T.copy(), bits[_TOP].T.copy())


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
