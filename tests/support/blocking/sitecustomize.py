"""Makes a process believe that some packages are not installed: those named in BLOCKED_MODULES.

Python imports this at its start where this folder is on PYTHONPATH.
"""

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import cast

BLOCKED = set(os.environ.get("BLOCKED_MODULES", "").split())


class Blinkers(MetaPathFinder):
    """A finder that finds what another one finds, except what is blocked."""

    def __init__(self, finder: MetaPathFinder) -> None:
        self._finder = finder

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] in BLOCKED:
            return None
        return self._finder.find_spec(name, path, target)


sys.meta_path[:] = [Blinkers(cast("MetaPathFinder", finder)) for finder in sys.meta_path]
