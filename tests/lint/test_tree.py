"""House rules for every tracked file."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

RULES = {
    "a TODO names its issue, as in TODO(#12)": re.compile(r"\b(TODO|FIXME|XXX)\b(?!\(#\d+\))"),
    "no path of somebody's machine": re.compile(r"(?<![\w.}])/(home|root|Users|work)/\w"),
    "no blank at the end of a line": re.compile(r"[ \t]$"),
}
EXEMPT = {"LICENSE", "client/node/package-lock.json", "tests/lint/test_tree.py"}


def _tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    names = [name for name in listed.stdout.split("\0") if name and name not in EXEMPT]
    return [ROOT / name for name in names if "_pb2" not in name and not name.endswith(".svg")]


@pytest.mark.parametrize("rule", RULES)
def test_every_line_keeps_the_rule(rule: str) -> None:
    broken = []
    for path in _tracked():
        try:
            lines = path.read_text().splitlines()
        except (UnicodeDecodeError, FileNotFoundError):
            continue
        broken += [
            f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
            for number, line in enumerate(lines, 1)
            if RULES[rule].search(line)
        ]
    assert not broken, f"{rule}:\n" + "\n".join(broken)
