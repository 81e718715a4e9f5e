"""Options that are times in seconds: with both bounds, and a number."""

import math

import typer
from typer.models import OptionInfo

SECONDS_MAX = 1e9
"""Thirty years, for those who mean for ever: the kernel's own timers take it."""


def seconds(envvar: str, help: str, *, least: float = 0.0) -> OptionInfo:
    """An option that takes `least` to SECONDS_MAX."""
    option = typer.Option(envvar=envvar, min=least, max=SECONDS_MAX, callback=_number, help=help)
    assert isinstance(option, OptionInfo)
    return option


def _number(value: float | None) -> float | None:
    """Raises typer.BadParameter for what a range may take to be within it, as older ones do."""
    if value is not None and math.isnan(value):
        raise typer.BadParameter("nan is not a number of seconds")
    return value
