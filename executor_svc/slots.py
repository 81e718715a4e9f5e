"""Slots and lanes: the device memory that a step reads, and the little that survives it.

A slot holds one plan on the device, byte for byte as the scheduler wrote it, so that a plan moves
in one copy; its attributes are typed views of the sections. Two slots (A, B) take turns. Lanes hold
what only the device knows between two steps: the last sampled token of each lane, and whether it
stopped.
"""

import torch
from torch import Tensor

from executor_svc.sampler import Sampled
from svc_wire.capacity import Capacity
from svc_wire.ids import CARRIED_TOKEN, NO_TOKEN, RowFlag, RowStatus
from svc_wire.layout import plan_dtype

_TORCH_DTYPES = {"<i4": torch.int32, "<i8": torch.int64, "<f4": torch.float32, "|u1": torch.uint8}


class Slot:
    """Device buffers of one plan and of its result, for R rows and T tokens at most."""

    def __init__(self, capacity: Capacity, device: torch.device) -> None:
        self._dtype = plan_dtype(capacity)
        self.plan_bytes = torch.zeros(self._dtype.itemsize, dtype=torch.uint8, device=device)
        self.query_indptr = self._view("query_indptr")  # [R + 1] int32
        self.block_indptr = self._view("block_indptr")  # [R + 1] int32
        self.row_lane = self._view("row_lane")  # [R] int32
        self.row_start = self._view("row_start")  # [R] int32
        self.row_stop = self._view("row_stop")  # [R] int32
        self.prompt_len = self._view("prompt_len")  # [R] int32
        self.row_flags = self._view("row_flags")  # [R] uint8
        self.temperature = self._view("temperature")  # [R] float32
        self.top_k = self._view("top_k")  # [R] int32
        self.top_p = self._view("top_p")  # [R] float32
        self.min_p = self._view("min_p")  # [R] float32
        self.repetition_penalty = self._view("repetition_penalty")  # [R] float32
        self.presence_penalty = self._view("presence_penalty")  # [R] float32
        self.frequency_penalty = self._view("frequency_penalty")  # [R] float32
        self.seed = self._view("seed")  # [R] int64
        self.stop_ids = self._view("stop_ids")  # [R, STOP_IDS_MAX] int32
        self.token_ids = self._view("token_ids")  # [T] int32
        self.positions = self._view("positions")  # [T] int32
        self.kv_slots = self._view("kv_slots")  # [T] int32
        self.block_ids = self._view("block_ids")  # tables, then copies; int32

    def _view(self, name: str) -> Tensor:
        assert self._dtype.fields is not None
        section, offset = self._dtype.fields[name][:2]
        base, shape = section.subdtype or (section, ())
        piece = self.plan_bytes[offset : offset + section.itemsize]
        return piece.view(_TORCH_DTYPES[base.str]).view(shape)


class Lanes:
    """The last sampled token of each lane, and whether it stopped; one scrap lane at the end."""

    def __init__(self, lanes: int, device: torch.device) -> None:
        self.token = torch.zeros(lanes + 1, dtype=torch.int32, device=device)
        self.stopped = torch.zeros(lanes + 1, dtype=torch.bool, device=device)

    def forget(self) -> None:
        self.token.fill_(CARRIED_TOKEN)
        self.stopped.fill_(False)

    def carry_over(
        self, row_lane: Tensor, row_flags: Tensor, last: Tensor, token_ids: Tensor
    ) -> Tensor:
        """Puts the lanes' tokens where rows asked for them; returns the masked rows, [R] bool.

        `last` [R] is the index of each row's last input token in `token_ids` [T], which is changed.
        """
        carries = (row_flags & int(RowFlag.CARRY)) != 0
        given = token_ids.index_select(0, last)
        token_ids.index_copy_(0, last, torch.where(carries, self.token[row_lane], given))
        return carries & self.stopped[row_lane]

    def settle(
        self, row_lane: Tensor, rows: Tensor, masked: Tensor, sampled: Sampled
    ) -> tuple[Tensor, Tensor]:
        """Remembers what was sampled; returns row_status [R] uint8 and row_token [R] int32.

        `rows` [S] are the rows that `sampled` belongs to. A lane that could not be sampled counts
        as stopped: a step that is already on its way must not go on from a token that does not
        exist.
        """
        status = torch.where(masked, int(RowStatus.MASKED), int(RowStatus.OK)).to(torch.uint8)
        token = torch.full_like(row_lane, NO_TOKEN, dtype=torch.int32)
        dead, lane = masked[rows], row_lane[rows]
        status[rows] = torch.where(dead, status[rows], sampled.status)
        token[rows] = torch.where(dead, token[rows], sampled.token)
        self.token[lane] = torch.where(dead, self.token[lane], sampled.token.clamp(min=0))
        self.stopped[lane] = dead | (sampled.status != int(RowStatus.OK))
        return status, token
