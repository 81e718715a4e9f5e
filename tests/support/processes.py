"""Processes, seen from outside."""

from pathlib import Path

import psutil


def users_of(run_dir: Path) -> list[psutil.Process]:
    """Those that were told this runtime directory, except zombies."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(run_dir) in (process.info["cmdline"] or [])
        and process.status() != psutil.STATUS_ZOMBIE
    ]
