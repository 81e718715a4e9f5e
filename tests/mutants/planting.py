"""Damaged copies of our packages."""

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]


def plant(place: Path, file: str, right: str, wrong: str) -> None:
    """Copies the package of `file` to `place`, and puts `wrong` there where `right` stands."""
    package = Path(file).parts[0]
    shutil.copytree(ROOT / package, place / package, ignore=shutil.ignore_patterns("__pycache__"))
    path = place / file
    source = path.read_text()
    assert source.count(right) == 1, f"the place to damage was changed: {file}"
    path.write_text(source.replace(right, wrong))
