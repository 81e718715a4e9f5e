"""The interface of a policy. The smallest one is a single function: `key`.

    order     key      a request's place among its group, fixed for its life
              group    which group it waits in; one for all, unless you say otherwise
              rank     which group's head goes next; asked only when a place in the batch is free
    admit     refuse   whether to turn a request away when it comes
    cut       piece    how many tokens of a prompt go into a step
    pre-empt  victim   who gives way when memory runs out
    learn     waits    a group has somebody waiting again
              served   tokens that a group got

Whatever a policy answers is checked, and the first answer that is wrong, or an exception, puts
first-come-first-served in its place. A policy sees immutable views and returns values, so it cannot
leak blocks, forget a request or overrun a budget. It is used by one thread, and must not block.
docs/policies.md is the guide; `twostroke policy check MODULE:NAME` tries a policy out.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from scheduler_svc.core.policies.options import Options

API_VERSION = "1.0"
"""Semantic: a policy written for 1.0 works with every 1.x."""

Key = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestView:
    """What a policy may know of a request. Times are seconds of the scheduler's own clock."""

    arrival: int
    """Grows with each accepted request; unique."""
    priority: int
    tenant: str
    prompt_tokens: int
    max_tokens: int
    expected_tokens: int = 0
    """Output tokens that the client expects; 0: it did not say."""
    submitted_s: float = 0.0
    deadline_s: float = math.inf
    """When the answer is of no use any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """A group with somebody waiting, or with somebody in the batch whose prompt is being read."""

    name: str
    waiting: int
    """0: it stands for the one in the batch."""
    head: RequestView
    """The first of the group, by key; or the one in the batch."""
    count_cached: Callable[[], int]
    """How many known tokens of the head have their KV: in the prefix cache, or in its own blocks.
    Costs a look a block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningView:
    """A sequence in the batch."""

    request: RequestView
    known_tokens: int
    """Prompt and committed output: what must be computed again if it is pre-empted."""
    preemptions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadView:
    """How busy the scheduler is, and how fast the executor; see `pace` for how it is measured."""

    now_s: float
    waiting: int
    running: int
    running_max: int
    step_s: float
    """A step that only decodes; 0 until one was seen."""
    prompt_token_s: float
    """What a prompt token adds to a step; 0 until one was seen."""


class Policy(ABC):
    """Decides who goes first. Override `key`, and what else you want to decide."""

    name: ClassVar[str]
    displaces: ClassVar[bool] = True
    """Whether a waiting request pre-empts the last running one if its key is smaller. Takes effect
    only while all requests are in one group."""

    rank_is_kept: ClassVar[bool] = False
    """Whether a group's `rank` is what it was until `waits` or `served` tells of that very group.
    Then it is only asked after that, which matters with thousands of groups. Whoever overrides the
    `rank` of such a policy has to say it anew."""

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        """Raises OptionError for an option that the policy does not have, or a value it refuses."""
        with Options(options) as known:
            self.configure(known)

    def configure(self, options: Options) -> None:  # noqa: B027 - may be left as it is
        """Takes what the policy knows out of `options`."""

    @abstractmethod
    def key(self, request: RequestView) -> Key:
        """The request's place in its group: smaller goes first.

        A pure function of the view, of numbers that are not NaN, which ends with `arrival`: so no
        two requests are equal, and earlier ones of equal rank are never overtaken.
        """

    def group(self, request: RequestView) -> str:
        """The group in which the request waits; fixed for its life."""
        return ""

    def rank(self, group: GroupView) -> Key:
        """The group's place among those that wait: the smallest rank's head goes next.

        Asked anew for every group whenever a place is free, so it may change with what was
        `served`, or less often: see `rank_is_kept`. Equal ranks go by the keys of their heads. The
        same order decides whose prompt is read first.
        """
        return ()

    def refuse(self, request: RequestView, load: LoadView) -> str | None:
        """Why the request is turned away, for its sender to read; None: it is welcome."""
        return None

    def piece(self, request: RequestView, wanted: int, room: int) -> int:
        """How many of `wanted` prompt tokens go into this step, of whose budget `room` is left.

        At least 1, at most the smaller of the two.
        """
        return min(wanted, room)

    def victim(self, running: Sequence[RunningView]) -> int:
        """The index of the sequence that is pre-empted, as memory has run out.

        They are at least two, in the order of their keys.
        """
        return len(running) - 1

    def waits(self, group: str, others: Collection[str]) -> None:  # noqa: B027 - as above
        """Somebody waits in `group`, where nobody did; in `others` somebody did before."""

    def served(  # noqa: B027 - as above
        self, group: str, prompt_tokens: int, output_tokens: int
    ) -> None:
        """So many prompt tokens of `group` were read (or found cached), so many tokens generated.

        Told before `rank` is asked. What is computed again after a pre-emption is not told again.
        """
