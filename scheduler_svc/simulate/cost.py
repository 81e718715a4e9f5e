"""What a step costs, as a few numbers: a model of the executor, fitted to measured steps.

    step_s = base_s + rows * row_s
           + context tokens * context_token_s + prompt tokens * prompt_token_s

`base_s` is reading the weights, `context_token_s` reading the KV of one token, `prompt_token_s` the
arithmetic of one more input token beyond a row's first. Such a sum is right within a few per cent
where steps are bound by memory; bound by arithmetic, they cost a little less than it says.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import overload

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.floating]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """An executor: its pace, and what it can hold."""

    name: str
    origin: str
    """Where the numbers come from."""
    base_s: float
    row_s: float
    context_token_s: float
    prompt_token_s: float
    num_blocks: int
    block_size: int
    model_len_max: int

    @overload
    def step_s(self, rows: int, prompt_tokens: int, context_tokens: int) -> float: ...

    @overload
    def step_s(self, rows: int, prompt_tokens: int, context_tokens: Int64s) -> Float64s: ...

    def step_s(
        self, rows: int, prompt_tokens: int, context_tokens: int | Int64s
    ) -> float | Float64s:
        """How long the executor computes such a step, or several of different contexts."""
        return (
            self.base_s
            + rows * self.row_s
            + context_tokens * self.context_token_s
            + prompt_tokens * self.prompt_token_s
        )

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

    Raises CostError if the samples do not tell the four costs apart.
    """
    table = np.array([(1, s.rows, s.context_tokens, s.prompt_tokens) for s in samples], float)
    took = np.array([s.step_s for s in samples])
    if len(samples) < 4 or np.linalg.matrix_rank(table) < 4:
        raise CostError("the steps must differ in rows, prompt tokens and context tokens")
    solution, *_ = np.linalg.lstsq(table / took[:, None], np.ones(len(samples)), rcond=None)
    if (solution < 0).any():
        raise CostError(f"the steps contradict the model: negative costs {solution.tolist()}")
    base_s, row_s, context_token_s, prompt_token_s = solution.tolist()
    return replace(
        like,
        name=name,
        origin=f"fitted to {len(samples)} measured steps",
        base_s=base_s,
        row_s=row_s,
        context_token_s=context_token_s,
        prompt_token_s=prompt_token_s,
    )
