"""Sizes of memory as people write them on command lines: `parser=parse_bytes` of an option."""

import re

import typer

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def parse_bytes(text: str) -> int:
    """A size such as "512MiB", "2 GB" or "1000000", in bytes. Raises typer.BadParameter."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]i?)?b?\s*", text.lower())
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a size; write for example 512MiB or 2GB")
    return int(float(match[1]) * _UNITS[match[2] or ""])
