"""What a step costs, as a few numbers: a model of the executor, fitted to measured steps.

    products_s = sqrt(base_s ** 2 + (input tokens * token_s) ** 2)
    step_s     = products_s + rows * row_s + context tokens * context_token_s
    copies_s   = KV blocks copied to host memory or back * block_copy_s, before the step

`base_s` is reading the weights and `token_s` the arithmetic of one input token; the two overlap, so
few tokens are free and many cost what their arithmetic does. `context_token_s` is reading the KV of
one token. Such a model is right within a few per cent over decode steps and prompts alike. That
nothing is computed while blocks are copied is for the worst: an executor may hide some of it.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import overload

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.floating]


FIT_ROUNDS = 30


class CostError(ValueError):
    """A cost model or a measurement cannot be used. The text is for a person."""


@dataclass(frozen=True, slots=True)
class StepSample:
    """One measured step."""

    rows: int
    prompt_tokens: int
    """Input tokens beyond one a row."""
    context_tokens: int
    """KV that the rows read, all together."""
    step_s: float
    """With the time that its copies took."""
    copies: int = 0
    """KV blocks copied to host memory or back before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """An executor: its pace, and what it can hold."""

    name: str
    origin: str
    """Where the numbers come from."""
    base_s: float
    row_s: float
    context_token_s: float
    token_s: float
    block_copy_s: float
    num_blocks: int
    block_size: int
    block_bytes: int
    model_len_max: int

    @overload
    def step_s(self, rows: int, prompt_tokens: int, context_tokens: int) -> float: ...

    @overload
    def step_s(self, rows: int, prompt_tokens: int, context_tokens: Int64s) -> Float64s: ...

    def step_s(
        self, rows: int, prompt_tokens: int, context_tokens: int | Int64s
    ) -> float | Float64s:
        """How long the executor computes such a step, or several of different contexts."""
        products_s = math.hypot(self.base_s, (rows + prompt_tokens) * self.token_s)
        return products_s + rows * self.row_s + context_tokens * self.context_token_s

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"


def shipped() -> list[str]:
    """Names of the models in this package."""
    return sorted(
        path.name.removesuffix(".json")
        for path in (files("scheduler_svc.simulate") / "costs").iterdir()
        if path.name.endswith(".json")
    )


def load(name: str) -> CostModel:
    """A shipped model by name, or one in a JSON file by its path. Raises CostError."""
    try:
        if name in shipped():
            text = (files("scheduler_svc.simulate") / "costs" / f"{name}.json").read_text()
        else:
            text = Path(name).read_text()
        return CostModel(**json.loads(text))
    except (OSError, ValueError, TypeError) as error:
        known = ", ".join(shipped())
        raise CostError(f"{name!r} is no cost model ({error}); there are: {known}") from error


def with_blocks(model: CostModel, num_blocks: int) -> CostModel:
    """The same executor with another amount of KV memory."""
    return replace(model, num_blocks=num_blocks)


def load_samples(path: Path) -> list[StepSample]:
    """Measured steps: a JSON list of objects with the fields of StepSample. Raises CostError."""
    try:
        return [StepSample(**entry) for entry in json.loads(path.read_text())]
    except (OSError, ValueError, TypeError) as error:
        names = ", ".join(field.name for field in fields(StepSample))
        raise CostError(f"{path} is no list of steps with {names}: {error}") from error


def fit(samples: Sequence[StepSample], like: CostModel, name: str) -> CostModel:
    """The model that comes closest to the samples, relative to each; sizes are those of `like`.

    So is what a copy costs, where no sample has one. Raises CostError if the samples do not tell
    the costs apart.
    """
    took_s = np.array([sample.step_s for sample in samples])
    rows = np.array([sample.rows for sample in samples], float)
    tokens = rows + [sample.prompt_tokens for sample in samples]
    context = np.array([sample.context_tokens for sample in samples], float)
    copies = np.array([sample.copies for sample in samples], float)
    linear = np.stack([rows, context, copies] if copies.any() else [rows, context], axis=1)
    costs = np.array([took_s.min(), (took_s / tokens).min(), *np.zeros(linear.shape[1])])
    for _ in range(FIT_ROUNDS):  # Gauss and Newton's: only the products are not linear
        base_s, token_s = costs[:2]
        products_s = np.hypot(base_s, tokens * token_s)
        slopes = np.column_stack([base_s / products_s, tokens**2 * token_s / products_s, linear])
        missing_s = took_s - (products_s + linear @ costs[2:])
        step, _, rank, _ = np.linalg.lstsq(slopes / took_s[:, None], missing_s / took_s, rcond=None)
        if len(samples) < len(costs) or rank < len(costs):
            raise CostError("the steps must differ in rows, prompt, context and copies")
        costs += step
    if not (costs >= 0).all():
        raise CostError(f"the steps contradict the model: it would take costs of {costs.tolist()}")
    base_s, token_s, row_s, context_token_s, *copy_s = costs.tolist()
    return replace(
        like,
        name=name,
        origin=f"fitted to {len(samples)} measured steps",
        base_s=base_s,
        token_s=token_s,
        row_s=row_s,
        context_token_s=context_token_s,
        block_copy_s=copy_s[0] if copy_s else like.block_copy_s,
    )
