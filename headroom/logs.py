"""Configures structured logs on standard error: readable lines on a terminal, JSON elsewhere."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter

import structlog

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_least = [logging.INFO]  # of this process


def set_level(name: str) -> None:
    _least[0] = LEVELS[name]


def _of_level(_logger: object, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Drops entries below the level in force. Loggers are cached with their class, so the class cannot decide it."""
    if LEVELS.get(method, logging.ERROR) < _least[0]:
        raise structlog.DropEvent
    return event


def configure_logging() -> None:
    """Must be called once per process, before the first log entry."""
    terminal = sys.stderr.isatty()
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if terminal else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            _of_level,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.getLogger("urllib3").setLevel(logging.CRITICAL)  # it raises its errors, and the caller logs them
    sys.unraisablehook = _unraisable
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")


def _unraisable(fault: sys.UnraisableHookArgs) -> None:
    """Logs what Python could not raise. Not a TLS server name that is no text: CPython reports the bytes of each such
    client here, and the gateway counts it as a failed handshake."""
    if isinstance(fault.exc_value, UnicodeDecodeError) and isinstance(fault.object, bytes):
        return
    structlog.get_logger(__name__).error(
        "an exception was ignored", error=repr(fault.exc_value), where=type(fault.object).__name__
    )


class Seldom(logging.Filter):
    """Passes the 1st, 2nd, 4th, 8th ... record of each message of a logger. Messages are templates of the library, so
    they are few. Requests that are cancelled at shutdown are no errors."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: Counter[object] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError):
            return False
        self._seen[record.msg] += 1
        return self._seen[record.msg] & (self._seen[record.msg] - 1) == 0


def thin_out(name: str) -> None:
    """Samples the log of a library that logs a line for each request that it refuses."""
    logger = logging.getLogger(name)
    if not any(isinstance(kept, Seldom) for kept in logger.filters):
        logger.addFilter(Seldom())
