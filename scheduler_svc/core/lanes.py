"""The running sequences as a structure of arrays: one lane a sequence, one array a fact.

    tokens of a lane:   0 ............ planned ......... known ...... known + pending = length
                        [ KV written or ][  to be planned ][ sampled,   )
                        [ on its way     ]                 [ unreported )

`planned` positions have their KV written by a published step. `pending` tokens are sampled by a
published step whose result has not been committed: the host does not know them. Steady decoding
touches these arrays with a handful of numpy calls, whatever the number of rows.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.types import Indices, Int32s, Int64s
from svc_wire.capacity import Capacity
from svc_wire.ids import NO_TOKEN, STOP_IDS_MAX, Lane, RowFlag
from svc_wire.layout import SETTINGS

Float32s = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]


class Moment(NamedTuple):
    """What changes with every step, of some lanes [R], gathered at once."""

    known: Int32s
    pending: Int32s
    planned: Int32s
    blocks: Int32s
    registered: Int32s


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """What stays as it is, of some lanes [R], as long as none of them changes hands."""

    lanes: Indices
    seq_id: Int64s
    tenancy: Int64s
    prompt_len: Int32s
    length_limit: Int32s
    ban_until: Int32s
    table_row: Indices
    token_row: Indices
    settings: Words  # [len(SETTINGS), R]
    standing_flags: Bytes
    logprobs: Bytes
    seed: Int64s
    stop_ids: Int32s  # [R, STOP_IDS_MAX]


class LaneTable:
    """State of [0:lanes). Only lanes that are taken have meaning."""

    def __init__(self, capacity: Capacity) -> None:
        lanes = capacity.lanes
        self.block_size = capacity.block_size
        self.sequences: list[Sequence | None] = [None] * lanes
        self._free = list(range(lanes - 1, -1, -1))
        self.changes = 0
        """How often any lane has changed hands."""
        # A numpy call costs about a microsecond, however few the rows: facts of one kind are
        # gathered as one matrix, and each is a row of it.
        self._moment: Int32s = np.zeros((len(Moment._fields), lanes), np.int32)
        moment = Moment._make(self._moment)
        self.known, self.pending, self.planned = moment.known, moment.pending, moment.planned
        self.blocks = moment.blocks
        """Length of the block table."""
        self.registered = moment.registered
        """Leading blocks that were offered to the prefix cache."""
        self._settings: Words = np.zeros((len(SETTINGS), lanes), np.uint32)
        settings = dict(zip(SETTINGS, self._settings, strict=True))
        self.prompt_len: Int32s = settings["prompt_len"].view(np.int32)
        self.top_k: Int32s = settings["top_k"].view(np.int32)
        self.temperature: Float32s = settings["temperature"].view(np.float32)
        self.top_p: Float32s = settings["top_p"].view(np.float32)
        self.min_p: Float32s = settings["min_p"].view(np.float32)
        self.repetition_penalty: Float32s = settings["repetition_penalty"].view(np.float32)
        self.presence_penalty: Float32s = settings["presence_penalty"].view(np.float32)
        self.frequency_penalty: Float32s = settings["frequency_penalty"].view(np.float32)
        self.seq_id: Int64s = np.zeros(lanes, np.int64)
        self.tenancy: Int64s = np.zeros(lanes, np.int64)
        """Grows whenever the lane changes hands: rows planned for an earlier tenancy are stale."""
        self.length_limit: Int32s = np.zeros(lanes, np.int32)
        self.ban_until: Int32s = np.zeros(lanes, np.int32)
        """Stop ids are banned for tokens at positions below this."""
        self.standing_flags: Bytes = np.zeros(lanes, np.uint8)
        """Of every row of the sequence."""
        self.logprobs: Bytes = np.zeros(lanes, np.uint8)
        """As in the plan: 0 is off, else 1 + the alternatives."""
        self.seed: Int64s = np.zeros(lanes, np.int64)
        self.stop_ids: Int32s = np.full((lanes, STOP_IDS_MAX), NO_TOKEN, np.int32)
        # Not filled in advance: they get memory only as far as sequences really reach.
        self.tokens: Int32s = np.empty((lanes, capacity.model_len_max), np.int32)
        self.table: Int32s = np.empty((lanes, capacity.blocks_per_row_max), np.int32)

    def moment(self, lanes: Indices) -> Moment:
        """A copy of what changes."""
        return Moment._make(self._moment.take(lanes, axis=1))

    def rows(self, lanes: Indices) -> Rows:
        """A copy of what does not."""
        settings = self._settings.take(lanes, axis=1)
        return Rows(
            lanes=lanes,
            seq_id=self.seq_id.take(lanes),
            tenancy=self.tenancy.take(lanes),
            prompt_len=settings[SETTINGS.index("prompt_len")].view(np.int32),
            length_limit=self.length_limit.take(lanes),
            ban_until=self.ban_until.take(lanes),
            table_row=lanes * self.table.shape[1],
            token_row=lanes * self.tokens.shape[1],
            settings=settings,
            standing_flags=self.standing_flags.take(lanes),
            logprobs=self.logprobs.take(lanes),
            seed=self.seed.take(lanes),
            stop_ids=self.stop_ids.take(lanes, axis=0),
        )

    @property
    def free_count(self) -> int:
        return len(self._free)

    def assign(self, sequence: Sequence, blocks: list[int], cached_tokens: int) -> Lane:
        """Gives `sequence` a lane; its first `cached_tokens` positions are already in `blocks`."""
        lane = Lane(self._free.pop())
        request, sampling = sequence.request, sequence.request.sampling
        known = len(sequence.tokens)
        self.sequences[lane] = sequence
        self.changes += 1
        self.seq_id[lane] = sequence.seq_id
        self.tenancy[lane] += 1
        self.prompt_len[lane] = len(request.prompt)
        self.length_limit[lane] = sequence.length_limit
        self.known[lane] = known
        self.pending[lane] = 0
        self.planned[lane] = cached_tokens
        self.ban_until[lane] = len(request.prompt) + request.min_tokens
        self.blocks[lane] = len(blocks)
        self.registered[lane] = cached_tokens // self.block_size
        self.temperature[lane] = sampling.temperature
        self.top_k[lane] = sampling.top_k
        self.top_p[lane] = sampling.top_p
        self.min_p[lane] = sampling.min_p
        self.repetition_penalty[lane] = sampling.repetition_penalty
        self.presence_penalty[lane] = sampling.presence_penalty
        self.frequency_penalty[lane] = sampling.frequency_penalty
        self.standing_flags[lane] = RowFlag.PENALISED if request.needs_history else 0
        self.logprobs[lane] = 0 if request.logprobs is None else 1 + request.logprobs
        self.seed[lane] = sampling.seed
        self.stop_ids[lane] = NO_TOKEN
        self.stop_ids[lane, : len(request.stop_ids)] = request.stop_ids
        self.tokens[lane, :known] = sequence.tokens
        self.table[lane, : len(blocks)] = blocks
        return lane

    def vacate(self, lane: Lane) -> None:
        """Frees the lane. Results of rows that are still in flight for it become stale."""
        self.tenancy[lane] += 1
        self.changes += 1
        self.sequences[lane] = None
        self._free.append(lane)

    def known_tokens(self, lane: Lane) -> Int32s:
        """A copy of the lane's known tokens."""
        return self.tokens[lane, : self.known[lane]].copy()

    def block_tokens(self, lanes: Indices, blocks: Int32s) -> list[bytes]:
        """The tokens of one full block of each lane, the `blocks[k]`th of lanes[k]."""
        size = self.block_size
        first = lanes * self.tokens.shape[1] + blocks * size
        content = self.tokens.take(first[:, np.newaxis] + np.arange(size)).tobytes()
        stride = self.tokens.itemsize * size
        return [content[begin : begin + stride] for begin in range(0, len(content), stride)]

    def block_table(self, lane: Lane) -> list[int]:
        blocks: list[int] = self.table[lane, : self.blocks[lane]].tolist()
        return blocks

    def occupant(self, lane: int) -> Sequence:
        sequence = self.sequences[lane]
        assert sequence is not None
        return sequence
