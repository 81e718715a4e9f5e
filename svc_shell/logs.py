"""Logs of a service: one line an event on stderr, readable on a terminal, JSON everywhere else."""

import logging
import sys

import structlog
import typer
from structlog.typing import Processor

from svc_shell.last_words import keepers
from svc_shell.unfailing import guard_stderr


def setup_logs(service: str, level: str = "info") -> structlog.stdlib.BoundLogger:
    """Configures structlog for this process, once; returns the logger that names the service.

    From here on, nothing that is written to stderr can fail. Raises typer.BadParameter for an
    unknown level.
    """
    levels = logging.getLevelNamesMapping()
    if level.upper() not in levels:
        raise typer.BadParameter(f"the log level {level!r} is none of: debug, info, warning, error")
    interactive = sys.stderr is not None and sys.stderr.isatty()
    rendered: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        structlog.dev.ConsoleRenderer() if interactive else structlog.processors.JSONRenderer(),
    ]
    guard_stderr(lambda lost: _line(rendered, service=service, event="lines lost", lines=lost))
    structlog.configure(
        processors=[*keepers(), *rendered],
        wrapper_class=structlog.make_filtering_bound_logger(levels[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logger: structlog.stdlib.BoundLogger = structlog.get_logger(service=service)
    return logger


def _line(processors: list[Processor], **event: object) -> str:
    """A warning as it would stand in the log."""
    done: object = event
    for processor in processors:
        done = processor(None, "warning", done)  # type: ignore[arg-type]
    return str(done)
