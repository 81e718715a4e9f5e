"""Logs of a service: one line an event on stderr, readable on a terminal, JSON everywhere else."""

import logging
import sys

import structlog
import typer

from svc_shell.last_words import keepers


def setup_logs(service: str, level: str = "info") -> structlog.stdlib.BoundLogger:
    """Configures structlog for this process, once; returns the logger that names the service.

    Raises typer.BadParameter for an unknown level.
    """
    levels = logging.getLevelNamesMapping()
    if level.upper() not in levels:
        raise typer.BadParameter(f"the log level {level!r} is none of: debug, info, warning, error")
    interactive = sys.stderr.isatty()
    structlog.configure(
        processors=[
            *keepers(),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer() if interactive else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(levels[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logger: structlog.stdlib.BoundLogger = structlog.get_logger(service=service)
    return logger
