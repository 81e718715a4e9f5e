"""The running sequences as a structure of arrays: one lane a sequence, one array a fact.

    tokens of a lane:   0 ............ planned ......... known ...... known + pending = length
                        [ KV written or ][  to be planned ][ sampled,   )
                        [ on its way     ]                 [ unreported )

`planned` positions have their KV written by a published step. `pending` tokens are sampled by a
published step whose result has not been committed: the host does not know them. Steady decoding
touches these arrays with a handful of numpy calls, whatever the number of rows.
"""

import numpy as np
import numpy.typing as npt

from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.types import Indices, Int32s, Int64s
from svc_wire.capacity import Capacity
from svc_wire.ids import NO_TOKEN, STOP_IDS_MAX, Lane, RowFlag
from svc_wire.record import Bytes

Float32s = npt.NDArray[np.float32]


class LaneTable:
    """State of [0:lanes). Only lanes that are taken have meaning."""

    def __init__(self, capacity: Capacity) -> None:
        lanes = capacity.lanes
        self.block_size = capacity.block_size
        self.sequences: list[Sequence | None] = [None] * lanes
        self._free = list(range(lanes - 1, -1, -1))
        self.seq_id: Int64s = np.zeros(lanes, np.int64)
        self.tenancy: Int64s = np.zeros(lanes, np.int64)
        """Grows whenever the lane changes hands: rows planned for an earlier tenancy are stale."""
        self.prompt_len: Int32s = np.zeros(lanes, np.int32)
        self.length_limit: Int32s = np.zeros(lanes, np.int32)
        self.known: Int32s = np.zeros(lanes, np.int32)
        self.pending: Int32s = np.zeros(lanes, np.int32)
        self.planned: Int32s = np.zeros(lanes, np.int32)
        self.ban_until: Int32s = np.zeros(lanes, np.int32)
        """Stop ids are banned for tokens at positions below this."""
        self.blocks: Int32s = np.zeros(lanes, np.int32)
        """Length of the block table."""
        self.registered: Int32s = np.zeros(lanes, np.int32)
        """Leading blocks that were offered to the prefix cache."""
        self.temperature: Float32s = np.zeros(lanes, np.float32)
        self.top_k: Int32s = np.zeros(lanes, np.int32)
        self.top_p: Float32s = np.ones(lanes, np.float32)
        self.min_p: Float32s = np.zeros(lanes, np.float32)
        self.repetition_penalty: Float32s = np.ones(lanes, np.float32)
        self.presence_penalty: Float32s = np.zeros(lanes, np.float32)
        self.frequency_penalty: Float32s = np.zeros(lanes, np.float32)
        self.standing_flags: Int32s = np.zeros(lanes, np.int32)
        """Of every row of the sequence."""
        self.logprobs: Bytes = np.zeros(lanes, np.uint8)
        """As in the plan: 0 is off, else 1 + the alternatives."""
        self.seed: Int64s = np.zeros(lanes, np.int64)
        self.stop_ids: Int32s = np.full((lanes, STOP_IDS_MAX), NO_TOKEN, np.int32)
        # Not filled in advance: they get memory only as far as sequences really reach.
        self.tokens: Int32s = np.empty((lanes, capacity.model_len_max), np.int32)
        self.table: Int32s = np.empty((lanes, capacity.blocks_per_row_max), np.int32)
        # Where each lane's row begins in the two, seen as flat.
        self.token_row: Indices = np.arange(lanes) * capacity.model_len_max
        self.table_row: Indices = np.arange(lanes) * capacity.blocks_per_row_max

    @property
    def free_count(self) -> int:
        return len(self._free)

    def assign(self, sequence: Sequence, blocks: list[int], cached_tokens: int) -> Lane:
        """Gives `sequence` a lane; its first `cached_tokens` positions are already in `blocks`."""
        lane = Lane(self._free.pop())
        request, sampling = sequence.request, sequence.request.sampling
        known = len(sequence.tokens)
        self.sequences[lane] = sequence
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
        self.sequences[lane] = None
        self._free.append(lane)

    def capacity_of(self, lanes: Indices) -> Int32s:
        """Tokens that the lanes' block tables can hold, [len(lanes)]."""
        return self.blocks.take(lanes) * np.int32(self.block_size)

    def known_tokens(self, lane: Lane) -> Int32s:
        """A copy of the lane's known tokens."""
        return self.tokens[lane, : self.known[lane]].copy()

    def block_table(self, lane: Lane) -> list[int]:
        blocks: list[int] = self.table[lane, : self.blocks[lane]].tolist()
        return blocks

    def occupant(self, lane: int) -> Sequence:
        sequence = self.sequences[lane]
        assert sequence is not None
        return sequence
