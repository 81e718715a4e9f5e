"""How much memory there is, on a machine alone and in a container with a limit."""

from pathlib import Path

import pytest

from executor_svc.errors import ExecutorError
from executor_svc.host_memory import available_bytes

MIB = 1 << 20


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    path = tmp_path / "meminfo"
    path.write_text(
        "MemTotal:       2048000 kB\nMemAvailable:   1024000 kB\nHugePages_Total:   0\n"
    )
    return path


def limit(group: Path, most: str, used: int, cached: int) -> None:
    (group / "memory.max").write_text(f"{most}\n")
    (group / "memory.current").write_text(f"{used}\n")
    (group / "memory.stat").write_text(f"anon 5\nfile 7\ninactive_file {cached}\n")


def test_a_machine_without_a_limit(machine: Path, tmp_path: Path) -> None:
    assert available_bytes(machine, tmp_path) == 1000 * MIB


@pytest.mark.parametrize(
    ("most", "used", "cached", "left"),
    [
        ("max", 300 * MIB, 0, 1000 * MIB),
        (str(500 * MIB), 300 * MIB, 0, 200 * MIB),
        (str(500 * MIB), 300 * MIB, 100 * MIB, 300 * MIB),
        (str(5000 * MIB), 300 * MIB, 0, 1000 * MIB),
        (str(500 * MIB), 501 * MIB, 0, 0),
    ],
)
def test_a_limit_counts_where_it_is_lower(
    machine: Path, tmp_path: Path, most: str, used: int, cached: int, left: int
) -> None:
    limit(tmp_path, most, used, cached)
    assert available_bytes(machine, tmp_path) == left


def test_a_machine_that_says_nothing_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 1 kB\n")
    with pytest.raises(ExecutorError, match="MemAvailable"):
        available_bytes(tmp_path / "meminfo", tmp_path)


def test_this_machine_has_some() -> None:
    assert available_bytes() > 0
