"""One flush of the spool per turn of the event loop, for all who appended to it in that turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

log = structlog.get_logger(__name__)


class GroupCommit:
    """`flush` makes durable what was appended; it raises OSError when it cannot."""

    def __init__(self, flush: Callable[[], None]) -> None:
        self.failures = 0
        self._flush = flush
        self._waiting: list[Callable[[bool], None]] = []

    def soon(self, done: Callable[[bool], None]) -> None:
        """Calls `done` with whether the flush succeeded, at the end of this turn of the loop."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._commit)
        self._waiting.append(done)

    def _commit(self) -> None:
        waiting, self._waiting = self._waiting, []
        try:
            self._flush()
        except OSError as exc:
            self.failures += 1
            log.error("cannot write to the spool: clients are asked to come back", error=str(exc))
            ok = False
        else:
            ok = True
        for done in waiting:
            done(ok)
