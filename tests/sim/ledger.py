"""The clients' side of a world: what every accepted request was sent, against the oracle."""

from dataclasses import dataclass, field, replace

import numpy as np

from executor_svc.hash_model import expected_logprobs
from scheduler_svc.core import Ending, Request, StepOutput
from svc_wire.capacity import Capacity
from svc_wire.ids import FinishReason, SeqId
from tests.sim.workload import expected

COMPLETE = (FinishReason.STOP_TOKEN, FinishReason.LENGTH)


@dataclass(slots=True, eq=False)
class Entry:
    """One accepted request, as its client sees it."""

    request: Request
    vocab_size: int
    oracle: list[int]
    tokens: list[int] = field(default_factory=list)
    ending: Ending | None = None

    @classmethod
    def of(cls, request: Request, capacity: Capacity) -> "Entry":
        return cls(request, capacity.vocab_size, expected(request, capacity))

    def resumed(self) -> Request:
        """The request once more, from where its output is."""
        return replace(self.request, output=np.array(self.tokens, np.int32), was_accepted=True)


class Ledger:
    """Takes in tokens and endings; asserts that each is the one that must come."""

    def __init__(self) -> None:
        self.entries: dict[SeqId, Entry] = {}
        """By the number that the scheduler of now gave."""

    @property
    def live(self) -> list[SeqId]:
        return [seq_id for seq_id, entry in self.entries.items() if entry.ending is None]

    def accept(self, seq_id: SeqId, entry: Entry) -> None:
        assert seq_id not in self.entries, "a sequence id was given twice"
        self.entries[seq_id] = entry

    def forget_scheduler(self) -> list[Entry]:
        """The scheduler is gone, and its numbers with it; returns who must be submitted again."""
        live = [entry for entry in self.entries.values() if entry.ending is None]
        self.entries = {}
        return live

    def take_output(self, output: StepOutput) -> None:
        """Each token is the next one that the oracle wants, of a request that has not ended."""
        tokens = zip(
            output.seq_ids.tolist(), output.indices.tolist(), output.tokens.tolist(), strict=True
        )
        for seq_id, index, token in tokens:
            entry = self.entries[seq_id]
            assert entry.ending is None, f"seq {seq_id}: a token after the end"
            assert index == len(entry.tokens), f"seq {seq_id}: token {index} is out of order"
            assert index < len(entry.oracle), f"seq {seq_id}: goes on after its end"
            wanted = entry.oracle[index]
            assert token == wanted, f"seq {seq_id}: token {index} is {token}, not {wanted}"
            entry.tokens.append(token)
        self._check_logprobs(output)
        for ending in output.endings:
            self.take_ending(ending)

    def _check_logprobs(self, output: StepOutput) -> None:
        """Each token has those that its request asked for, of its own position."""
        asked = [self.entries[seq_id].request.logprobs for seq_id in output.seq_ids.tolist()]
        if output.logprobs is None:
            assert all(count is None for count in asked), "log-probabilities were lost"
            return
        pairs = list(
            zip(output.logprobs.ids.tolist(), output.logprobs.values.tolist(), strict=True)
        )
        assert output.logprobs.counts.tolist() == [
            0 if count is None else 1 + count for count in asked
        ]
        for seq_id, index, token, count in zip(
            output.seq_ids.tolist(), output.indices.tolist(), output.tokens.tolist(), asked,
            strict=True,
        ):  # fmt: skip
            if count is None:
                continue
            entry = self.entries[seq_id]
            position = len(entry.request.prompt) + index
            chosen, top = expected_logprobs(position, token, count, entry.vocab_size)
            found, pairs = pairs[: 1 + count], pairs[1 + count :]
            assert found == [(token, chosen), *top], f"seq {seq_id}: log-probabilities of another"
        assert not pairs

    def take_ending(self, ending: Ending) -> None:
        """It is the first one, counts what was sent, and comes neither early nor late."""
        entry = self.entries[ending.seq_id]
        request, output = entry.request, entry.tokens
        assert entry.ending is None, f"seq {ending.seq_id} ended twice"
        assert ending.output_tokens == len(output), "tokens were lost or not counted"
        assert ending.prompt_tokens == len(request.prompt)
        assert 0 <= ending.cached_tokens <= ending.prompt_tokens
        if ending.reason in COMPLETE:
            assert output == entry.oracle, f"seq {ending.seq_id} ended early"
            stopped = output[-1] in request.stop_ids and len(output) > request.min_tokens
            assert (ending.reason is FinishReason.STOP_TOKEN) == stopped
        else:
            assert output != entry.oracle, f"seq {ending.seq_id} was complete and was not ended"
        entry.ending = ending
