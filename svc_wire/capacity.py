"""What the executor found out about itself: sizes that nobody chooses after the handshake."""

import msgspec

_MAY_BE_ZERO = ("host_blocks", "block_copy_ns")


class Capacity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes that fix the frame layout and bound the scheduler.

    Config is what was asked; Capacity is what was found. Neither changes afterwards.
    """

    num_blocks: int
    """KV blocks that the scheduler may hand out: ids in [0:num_blocks)."""
    block_size: int
    """Tokens a block."""
    rows_max: int
    """Most rows a step."""
    tokens_max: int
    """Most input tokens a step, all rows together."""
    lanes: int
    """Sequences that can run at once: lanes in [0:lanes)."""
    model_len_max: int
    """Most tokens of one sequence, prompt and output together."""
    vocab_size: int
    host_blocks: int = 0
    """Blocks of host memory that KV can be copied out to: ids in [0:host_blocks). 0: none."""
    block_copy_ns: int = 0
    """How long it takes to copy one block, out or in; measured when the model was loaded."""

    @property
    def blocks_per_row_max(self) -> int:
        return -(-self.model_len_max // self.block_size)

    @property
    def table_max(self) -> int:
        """Most block-table entries of one frame, all rows together."""
        return self.rows_max * self.blocks_per_row_max

    @property
    def copies_max(self) -> int:
        """Most block copies of one frame, out and in: no host block comes twice in either."""
        return 2 * self.host_blocks

    @property
    def sequence_len_max(self) -> int:
        """Most tokens of one sequence that the model and the whole KV pool allow."""
        return min(self.model_len_max, self.num_blocks * self.block_size)

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            least = 0 if name in _MAY_BE_ZERO else 1
            if getattr(self, name) < least:
                raise ValueError(
                    f"capacity: {name} must be at least {least}, is {getattr(self, name)}"
                )
        if self.rows_max > self.lanes:
            raise ValueError("capacity: rows_max must not exceed lanes")
        if self.rows_max > self.tokens_max:
            raise ValueError("capacity: rows_max must not exceed tokens_max")
        # What a frame addresses is an int32, and so is the size of a numpy record.
        for name, value, bits in (
            ("num_blocks * block_size", self.num_blocks * self.block_size, 31),
            ("model_len_max + block_size", self.model_len_max + self.block_size, 31),
            ("vocab_size", self.vocab_size, 31),
            ("rows_max * blocks_per_row_max", self.table_max, 28),
            ("host_blocks", self.host_blocks, 24),
            ("tokens_max", self.tokens_max, 24),
            ("lanes", self.lanes, 20),
        ):
            if value >= 1 << bits:
                raise ValueError(f"capacity: {name} must be below 2**{bits}, is {value}")


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the front ends must know of the model; found by the executor, passed on unchanged."""

    name: str
    """The name under which it is served."""
    path: str
    """Local folder with config, tokenizer and chat template; empty for the hash runner."""
    eos_ids: tuple[int, ...]
    """Token ids that end a sequence unless the request ignores them."""
    dtype: str
    device: str
