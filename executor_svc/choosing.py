"""From logits to tokens on the CPU: histories, penalties, the sampler, log-probabilities.

The same work as on a CUDA device (cuda/step.py), by the same functions, without kernels of our own.
"""

import numpy as np
import torch
from torch import Tensor

from executor_svc.logprobs import Measured, measure, of_chosen
from executor_svc.penalties import Histories, Penalties, penalise
from executor_svc.recipe import choose_recipe
from executor_svc.sampler import Sampled, SamplingRows, sample
from executor_svc.slots import Slot
from svc_wire.capacity import Capacity
from svc_wire.frames import BatchPlan, StepLogprobs
from svc_wire.ids import RowFlag


class Chooser:
    """Chooses the tokens of steps; keeps the histories that penalties need."""

    def __init__(self, capacity: Capacity, device: torch.device) -> None:
        self._histories = Histories(capacity.lanes, capacity.vocab_size, device)

    def remember(self, plan: BatchPlan, token_ids: Tensor) -> None:
        """Input tokens [T] of rows with penalties, carried ones too, join their histories."""
        penalised = (plan.row_flags & RowFlag.PENALISED) != 0
        if not penalised.any():
            return
        self._histories.begin(torch.from_numpy(plan.row_lane[penalised & (plan.row_start == 0)]))
        lengths = plan.row_stop - plan.row_start
        tokens = np.flatnonzero(penalised.repeat(lengths))
        is_output = plan.positions >= plan.prompt_len.repeat(lengths)
        self._histories.extend(
            torch.from_numpy(plan.row_lane.repeat(lengths)[tokens].astype(np.int64)),
            token_ids[torch.from_numpy(tokens)].long(),
            torch.from_numpy(is_output[tokens]),
        )

    def choose(
        self, plan: BatchPlan, slot: Slot, samples: Tensor, logits: Tensor
    ) -> tuple[Sampled, StepLogprobs | None]:
        """For the rows `samples` [S], whose logits [S, V] are overwritten; for all R rows."""
        recipe = choose_recipe(plan)
        measured = measure(logits, recipe.told) if recipe.told else None
        scores = logits
        if recipe.penalises:
            scores = penalise(logits, self._cells(slot, samples), _penalties(slot, samples))
        sampled = sample(scores, _asked(slot, samples), recipe.path)
        if measured is None:
            return sampled, None
        chosen = of_chosen(logits, sampled.token, measured)
        return sampled, _spread(samples, plan.rows, chosen, measured)

    def _cells(self, slot: Slot, rows: Tensor) -> Tensor:
        """[S, V]; 0 for rows without penalties, whose lanes hold what others left."""
        penalised = (slot.row_flags[rows] & int(RowFlag.PENALISED)) != 0
        return self._histories.cells[slot.row_lane[rows].long()] * penalised[:, None]


def _penalties(slot: Slot, samples: Tensor) -> Penalties:
    return Penalties(
        slot.repetition_penalty[samples],
        slot.presence_penalty[samples],
        slot.frequency_penalty[samples],
    )


def _asked(slot: Slot, samples: Tensor) -> SamplingRows:
    return SamplingRows(
        temperature=slot.temperature[samples],
        top_k=slot.top_k[samples],
        top_p=slot.top_p[samples],
        min_p=slot.min_p[samples],
        seed=slot.seed[samples],
        position=slot.row_stop[samples],
        stop_ids=slot.stop_ids[samples],
        ban_stop=(slot.row_flags[samples] & int(RowFlag.BAN_STOP)) != 0,
    )


def _spread(samples: Tensor, rows: int, chosen: Tensor, measured: Measured) -> StepLogprobs:
    """From the rows that sample to all R."""

    def spread(values: Tensor) -> Tensor:
        return values.new_zeros(rows, *values.shape[1:]).index_copy_(0, samples, values)

    return StepLogprobs(
        spread(chosen).numpy(), spread(measured.top_ids).numpy(), spread(measured.top).numpy()
    )
