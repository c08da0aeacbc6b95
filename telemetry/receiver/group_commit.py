"""Group commit: one flush of the spool per turn of the event loop covers all records appended in that turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

log = structlog.get_logger(__name__)


class GroupCommit:
    """`flush` makes appended records durable, or raises; `settled` is called with the outcome first."""

    def __init__(self, flush: Callable[[], None], settled: Callable[[bool], None]) -> None:
        self.failures = 0
        self._is_failing = False
        self._flush = flush
        self._settled = settled
        self._waiting: list[Callable[[bool], None]] = []

    def soon(self, done: Callable[[bool], None]) -> None:
        """Calls `done` with whether the flush succeeded, at the end of this turn of the loop."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._commit)
        self._waiting.append(done)

    async def flushed(self) -> bool:
        """Whether the flush at the end of this turn of the loop succeeded."""
        flushed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def done(ok: bool) -> None:
            if not flushed.done():  # the caller may have been cancelled
                flushed.set_result(ok)

        self.soon(done)
        return await flushed

    def _commit(self) -> None:
        waiting, self._waiting = self._waiting, []
        ok = self._flushed()
        self._settled(ok)
        for done in waiting:
            try:
                done(ok)
            except Exception:  # a bug in one connection: the others still get their answers
                log.exception("cannot answer a client")

    def _flushed(self) -> bool:
        try:
            self._flush()
        except Exception as exc:  # whatever fails, no push of this turn may be acknowledged
            self.failures += 1
            if not self._is_failing:  # once per outage: a full disk fails hundreds of flushes a second
                log.exception("cannot write to the spool: clients are asked to retry", error=str(exc))
            self._is_failing = True
            return False
        if self._is_failing:
            log.info("spool writes succeed again", failures=self.failures)
            self._is_failing = False
        return True
