"""Damaged copies of our packages."""

import shutil
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Bug:
    """A change of one place in one file of scheduler_svc/core."""

    name: str
    file: str
    right: str
    """Stands exactly once in the file."""
    wrong: str
    story: str = ""
    """The scenario that finds it, where nothing but the letter of a policy is hurt, or where it
    takes more luck than some hundred worlds have. Empty: the simulation finds it."""


def plant(place: Path, file: str, right: str, wrong: str) -> None:
    """Copies the package of `file` to `place`, and puts `wrong` there where `right` stands."""
    package = Path(file).parts[0]
    shutil.copytree(ROOT / package, place / package, ignore=shutil.ignore_patterns("__pycache__"))
    path = place / file
    source = path.read_text()
    assert source.count(right) == 1, f"the place to damage was changed: {file}"
    path.write_text(source.replace(right, wrong))
