"""From the logits of a step's rows to their tokens: the last part of every step.

    (histories) ─► (log-probabilities) ─► (penalties) ─► sample ─► finish mask, lanes, result

Where a row has penalties, the step's input tokens join the histories first, and scores change
before sampling. Where one wants log-probabilities, they come from the logits before that. All that
differs between two steps of a recipe is read on the device, so that a captured choice serves them;
rows past the plan's touch nothing.
"""

from torch import Tensor

from executor_svc.cuda.device_slot import DeviceSlot
from executor_svc.cuda.penalty_kernels import join_histories, penalise
from executor_svc.cuda.sampling_kernels import draw
from executor_svc.cuda.step_kernels import sample_greedy, settle
from executor_svc.logprobs import measure, of_chosen
from executor_svc.penalties import Histories
from executor_svc.recipe import Recipe
from executor_svc.sampler import Path, SamplingRows, sample
from executor_svc.slots import Lanes
from svc_wire.ids import RowFlag


class Choosing:
    """Enqueues choices from `logits` [rows_max, V] on the current stream."""

    def __init__(
        self, logits: Tensor, slots: list[DeviceSlot], lanes: Lanes, histories: Histories
    ) -> None:
        self.logits = logits
        self._slots = slots
        self._lanes = lanes
        self._histories = histories

    def enqueue(self, slot_index: int, rows: int, recipe: Recipe) -> None:
        """For the first `rows` rows, of which the slot's plan may have fewer. Logits may change."""
        slot, logits = self._slots[slot_index], self.logits[:rows]
        if recipe.penalises:
            join_histories(slot, self._histories, rows)
        measured = measure(logits, recipe.told) if recipe.told else None
        scores = penalise(logits, slot, self._histories) if recipe.penalises else logits
        if recipe.path is Path.GREEDY:
            sample_greedy(scores, slot, self._lanes)
        else:
            sampled = sample(scores, _sampling_rows(slot, rows), recipe.path, draw)
            settle(sampled.token, slot, self._lanes)
        if measured is not None:
            token = slot.result[0, :rows]
            slot.tell(of_chosen(logits, token, measured), measured)


def _sampling_rows(slot: DeviceSlot, rows: int) -> SamplingRows:
    return SamplingRows(
        temperature=slot.temperature[:rows],
        top_k=slot.top_k[:rows],
        top_p=slot.top_p[:rows],
        min_p=slot.min_p[:rows],
        seed=slot.seed[:rows],
        position=slot.row_stop[:rows],
        stop_ids=slot.stop_ids[:rows],
        ban_stop=(slot.row_flags[:rows] & int(RowFlag.BAN_STOP)) != 0,
    )
