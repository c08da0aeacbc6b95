"""Runs the queries of pages and API beside the event loop, a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from headroom.daemon_thread import in_daemon_thread
from headroom.web.parameters import UnavailableError

Answer = TypeVar("Answer")

_MOST = 8  # below the number of queries that all readers of the managed server may run at once
_PATIENCE_S = 30.0


class QueryThreads:
    """Threads of their own: while the store hangs, readers of pages must not delay the spool's syncs and /metrics."""

    def __init__(self, most: int = _MOST, patience_s: float = _PATIENCE_S) -> None:
        self._free = asyncio.Semaphore(most)
        self._patience_s = patience_s

    async def run(self, query: Callable[[], Answer]) -> Answer:
        """Raises what `query` raises, and UnavailableError when no thread is free in time."""
        try:
            async with asyncio.timeout(self._patience_s):
                await self._free.acquire()
        except TimeoutError as exc:
            raise UnavailableError("too many questions are being answered, try again later") from exc
        try:
            return await in_daemon_thread(query)
        finally:
            self._free.release()
