"""Whether the store answers, and how old the newest levels are that pages show.

A page must not wait for a store that hangs: beside its queries a ping with a short time limit finds out whether the
store is there at all. Nothing is asked while nobody looks at pages.
"""

import asyncio
import math
import time
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from exporters.clickhouse.client import ClickHouse, Row
from exporters.clickhouse.ping import ping
from exporters.printable import shortened
from headroom.daemon_thread import in_daemon_thread
from headroom.web.parameters import UnavailableError
from quota_metrics.verdict.window import LATE_S, WINDOW_S

Answer = TypeVar("Answer")

_NEWEST: Final = "SELECT toUnixTimestamp(window_start) AS from_s FROM newest_window"
_PROBE_S = 1.5  # in which a store that is there answers; a page answers within two seconds
_SHARED_S = 1.0
_LONGEST = 300


class Freshness(NamedTuple):
    """What a page can say of its data; times are Unix seconds, None when there is none.

    `state`: live; late: no newer levels were computed in time; away: the store does not answer since `since_s`.
    """

    state: str
    shown_s: int | None  # end of the newest 60 seconds
    age_s: int | None  # of the newest levels
    now_s: int
    since_s: int | None
    error: str  # host and cause; empty unless away


class StoreWatch:
    def __init__(self, clickhouse: ClickHouse) -> None:
        self._store = clickhouse
        self._shown_s: int | None = None
        self._error = ""
        self._since_s: int | None = None
        self._began_s = self._ended_s = -math.inf  # of the last look, monotonic
        self._looking: asyncio.Task[None] | None = None
        self._newest: asyncio.Future[list[Row]] | None = None

    async def freshness(self) -> Freshness:
        """By a look at the store that is at most a second old."""
        if time.monotonic() - self._ended_s > _SHARED_S:
            await self._look(time.monotonic())
        if not self._error:
            # A busy store may take its time: until it has answered, the last answer counts.
            if self._newest is None or self._newest.done():
                self._newest = asyncio.ensure_future(in_daemon_thread(partial(self._store.rows, _NEWEST)))
            await asyncio.wait([self._newest], timeout=_PROBE_S if self._shown_s is None else _SHARED_S)
            if self._newest.done() and self._newest.exception() is None:
                from_s = int(self._newest.result()[0]["from_s"])
                self._shown_s = from_s + WINDOW_S if from_s else None
        now_s = int(time.time())
        is_late = self._shown_s is None or now_s - self._shown_s > LATE_S
        state = "away" if self._error else "late" if is_late else "live"
        age_s = None if self._shown_s is None else max(0, now_s - self._shown_s)
        return Freshness(state, self._shown_s, age_s, now_s, self._since_s, self._error)

    async def answer(self, question: Coroutine[Any, Any, Answer]) -> Answer:
        """Its result. Raises what it raises, and UnavailableError as soon as the store is found away meanwhile."""
        running = asyncio.create_task(question)
        try:
            while not running.done():
                looking = asyncio.create_task(self._look(time.monotonic()))
                await asyncio.wait([running, looking], return_when=asyncio.FIRST_COMPLETED)
                if not running.done():
                    if self._error:
                        raise UnavailableError(f"The store does not answer: {self._error}")
                    await asyncio.wait([running], timeout=_SHARED_S)
            return running.result()
        finally:
            running.cancel()

    async def _look(self, since_s: float) -> None:
        """A look that began at `since_s` (monotonic) or later, or the one that is in progress."""
        if self._looking is None or self._looking.done():
            if self._began_s >= since_s:
                return
            self._began_s = time.monotonic()
            self._looking = asyncio.get_running_loop().create_task(self._ask())
        await asyncio.shield(self._looking)

    async def _ask(self) -> None:
        began_s = int(time.time())
        try:
            await in_daemon_thread(partial(ping, self._store.nodes, _PROBE_S))
        except ConnectionError as exc:
            self._error, self._since_s = shortened(str(exc), _LONGEST), self._since_s or began_s
        else:
            self._error, self._since_s = "", None
        self._ended_s = time.monotonic()
