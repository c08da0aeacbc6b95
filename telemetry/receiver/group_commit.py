"""Group commit: one flush of the spool covers the records appended in a turn of the event loop, or a part of it.

A turn that serves many connections flushes several times, while the state of the first ones is still in the processor's
cache: a write costs less than the cache misses of a thousand connections that are visited twice.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

log = structlog.get_logger(__name__)

MOST_WAITING: Final = 64


class GroupCommit:
    """`flush` makes appended records durable, or raises; `settled` is called with the outcome first.

    It flushes as soon as `most_waiting` wait (None: once per turn, for a flush that costs more than cache misses).
    """

    def __init__(
        self, flush: Callable[[], None], settled: Callable[[bool], None], most_waiting: int | None = MOST_WAITING
    ) -> None:
        self.failures = 0
        self._is_failing = False
        self._flush = flush
        self._settled = settled
        self._most_waiting = most_waiting
        self._waiting: list[Callable[[bool], None]] = []
        self._is_scheduled = False

    def soon(self, done: Callable[[bool], None]) -> None:
        """Calls `done` with whether the flush succeeded, at the end of this turn of the loop or before this returns."""
        self._waiting.append(done)
        if len(self._waiting) == self._most_waiting:
            self._commit()
        elif not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._end_of_turn)

    async def flushed(self) -> bool:
        """Whether the next flush succeeded."""
        flushed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def done(ok: bool) -> None:
            if not flushed.done():  # the caller may have been cancelled
                flushed.set_result(ok)

        self.soon(done)
        return await flushed

    def _end_of_turn(self) -> None:
        self._is_scheduled = False
        if self._waiting:
            self._commit()

    def _commit(self) -> None:
        waiting, self._waiting = self._waiting, []
        ok = True
        try:
            self._flush()
        except Exception as exc:  # whatever fails, no push of this turn may be acknowledged
            ok = False
            self.failures += 1
            if not self._is_failing:  # once per outage: a full disk fails hundreds of flushes a second
                log.exception("cannot write to the spool: clients are asked to retry", error=str(exc))
            self._is_failing = True
        if ok and self._is_failing:
            log.info("spool writes succeed again", failures=self.failures)
            self._is_failing = False
        self._settled(ok)
        for done in waiting:
            try:
                done(ok)
            except Exception:  # a bug in one connection: the others still get their answers
                log.exception("cannot answer a client")
