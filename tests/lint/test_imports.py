"""What some packages may import, as lists of what is allowed.

`.importlinter` holds the contracts between packages, indirect imports included. It can only forbid;
here nothing is allowed that is not named, the standard library included.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

ALLOWED = {
    # Pure: data types and arithmetic. No clock, chance, I/O, thread or environment.
    "scheduler_svc/core": {
        "abc", "bisect", "collections", "collections.abc", "dataclasses", "enum", "functools",
        "hashlib", "heapq", "itertools", "math", "operator", "types", "typing", "numpy",
        "numpy.typing", "scheduler_svc.core",
        "svc_wire.capacity", "svc_wire.frames", "svc_wire.ids",
        "svc_wire.frontend_link",  # for Sampling, a value
        "svc_wire.layout",  # for SETTINGS, the names of neighbouring sections
    },
    "svc_wire": {"numpy", "msgspec", "svc_wire"},
}  # fmt: skip

FRONTEND_WIRE = {"ids", "capacity", "codec", "frontend_link", "errors", "rundir", "processes"}

STDLIB_OF_THE_WIRE = {
    "collections", "contextlib", "ctypes", "dataclasses", "enum", "errno", "fcntl", "functools",
    "hashlib", "math", "mmap", "os", "pathlib", "secrets", "signal", "stat", "struct", "threading",
    "time", "typing",
}  # fmt: skip


def _imports(package: str) -> dict[str, set[str]]:
    """For each file, the modules that it imports; `from a import b` counts as a."""
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        names = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names.add(node.module or "")
        found[str(path.relative_to(ROOT))] = names
    assert found, f"{package} has no modules"
    return found


def _is_allowed(name: str, allowed: set[str]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in allowed)


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        ("scheduler_svc/core", ALLOWED["scheduler_svc/core"]),
        ("svc_wire", ALLOWED["svc_wire"] | STDLIB_OF_THE_WIRE),
    ],
)
def test_imports_nothing_that_is_not_allowed(package: str, allowed: set[str]) -> None:
    broken = {
        file: bad
        for file, names in _imports(package).items()
        if (bad := {name for name in names if not _is_allowed(name, allowed)})
    }
    assert not broken


def test_the_front_end_uses_its_part_of_the_wire_only() -> None:
    used = {
        name.removeprefix("svc_wire.")
        for names in _imports("frontend_svc").values()
        for name in names
        if name.split(".")[0] == "svc_wire"
    }
    assert used <= FRONTEND_WIRE
