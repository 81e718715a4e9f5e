"""Processes, seen from outside."""

from pathlib import Path

import psutil


def users_of(folder: Path) -> list[psutil.Process]:
    """Those that were told this folder, or one in it, on their command line, except zombies."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(Path(word).is_relative_to(folder) for word in process.info["cmdline"] or ())
        and process.status() != psutil.STATUS_ZOMBIE
    ]
