"""Computes the level of each client in the newest minute that has ended, once for each minute, into headroom_minutes.

The views of now, the pages, `headroom top` and the metrics of levels read that table. A minute is computed again when
more of its rows have arrived. Several services over one store each write the same rows; the newest computation counts.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from exporters.clickhouse.minutes import COMPUTE_MINUTE, COUNT_ROWS
from exporters.clickhouse.reader import Nodes, read_rows, run_statement
from headroom.clock import now_ms
from headroom.daemon_thread import in_daemon_thread
from headroom.server.periodic import PeriodicTask

_EVERY_MS = 2_000
_WINDOW_S = 60
_COMPLETE_AFTER_S = 4  # by then the rows of a minute are stored
_AGAIN_MS = 10_000  # the shortest pause between two computations of one minute
_PAUSE_SHARE = 4  # and in multiples of what a computation took: it takes at most a fifth of the time
_TIMEOUT_S = 60.0
_COUNT_TIMEOUT_S = 5.0


class MinuteLevels:
    """Writes to `store` with `settings` of each statement; `computed` is called with each minute that was written."""

    def __init__(
        self,
        store: Nodes,
        settings: Mapping[str, str],
        computed: Callable[[int], Awaitable[None]],
        now_ms: Callable[[], int] = now_ms,
    ) -> None:
        self._store = store
        self._settings = settings
        self._computed = computed
        self._now_ms = now_ms
        self._newest = (0, 0)  # the minute that was computed last, in seconds, and its rows then
        self._tried_s = 0  # the minute that was tried last
        self._not_before_ms = 0  # for another try of it

    def task(self) -> PeriodicTask:
        """Looks whether a minute has ended, or more rows have arrived."""
        return PeriodicTask("levels of the last minute", _EVERY_MS, self.step, on_the_clock=True)

    async def step(self) -> None:
        """Computes the newest minute that has ended unless its rows are the same as before. Raises ConnectionError."""
        window_s = (self._now_ms() // 1000 - _WINDOW_S - _COMPLETE_AFTER_S) // _WINDOW_S * _WINDOW_S
        if window_s == self._tried_s and self._now_ms() < self._not_before_ms:
            return
        minute = {"window_s": window_s}
        counted = partial(read_rows, sql=COUNT_ROWS, parameters=minute, timeout_s=_COUNT_TIMEOUT_S)
        newest = window_s, (await in_daemon_thread(partial(self._store.ask, counted)))[0]["rows"]
        if newest == self._newest:
            return
        began = time.monotonic()
        try:
            await self._compute(minute)
            await self._computed(window_s)
        finally:
            took_ms = (time.monotonic() - began) * 1000
            self._tried_s, self._not_before_ms = window_s, int(self._now_ms() + max(_AGAIN_MS, _PAUSE_SHARE * took_ms))
        self._newest = newest

    async def _compute(self, minute: Mapping[str, int]) -> None:
        statement = partial(
            run_statement, sql=COMPUTE_MINUTE, parameters=minute, settings=self._settings, timeout_s=_TIMEOUT_S
        )
        await in_daemon_thread(partial(self._store.ask, statement))
