"""Computes the level of each client in each minute that has ended, into headroom_minutes.

The views of now, the pages, `headroom top` and the metrics of levels read that table. A minute is computed again when
more of its rows have arrived, in the last hours. Several services over one store each write the same rows; the newest
computation counts.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial

from exporters.clickhouse.client import ClickHouse, Row
from exporters.clickhouse.errors import QUERY_WITH_SAME_ID_IS_ALREADY_RUNNING, StoreAwayError, StoreError
from headroom.clock import now_ms
from headroom.daemon_thread import in_daemon_thread
from headroom.owners import OwnersInForce
from headroom.server.periodic import PeriodicTask
from quota_metrics.levels.definition import MEMORY_WINDOWS, Thresholds
from quota_metrics.levels.minute import (
    CHANGED_MINUTES,
    SET_THRESHOLDS,
    THRESHOLDS,
    WINDOW_S,
    compute_minute,
    minute_parameters,
)

_EVERY_MS = 2_000
_COMPLETE_AFTER_S = 4  # by then the rows of a minute are stored
_REACH_S = 5 * 3600  # minutes before are not computed: their rows are about to expire
_AT_START_MS = 900_000  # rows that arrived while no service computed
_MARGIN_MS = 60_000  # an insert in progress may become visible after its received_at
_AGAIN_MS = 10_000  # the shortest pause between two computations, but for a minute that has just ended
_PAUSE_SHARE = 4  # and in multiples of what a computation took: it takes at most a fifth of the time
_TIMEOUT_S = 60.0
_THREADS = max((os.cpu_count() or 1) // 2, 1)  # pages are read on the other cores meanwhile
_EXECUTION_S = 50  # then ClickHouse says itself that it takes too long
_WITHOUT_TELEMETRY_S = 600  # after a computation that failed: more telemetry than it can read delays no level for long
_CHANGES_TIMEOUT_S = 5.0


class MinuteLevels:
    """Writes to `store`; `computed` is called when the newest minute was written."""

    def __init__(
        self,
        store: ClickHouse,
        computed: Callable[[int], Awaitable[None]],
        thresholds: Thresholds = Thresholds(),
        now_ms: Callable[[], int] = now_ms,
        owners: OwnersInForce | None = None,
    ) -> None:
        self._changes = replace(store, timeout_s=_CHANGES_TIMEOUT_S)
        limits = {"max_execution_time": str(_EXECUTION_S), "max_threads": str(_THREADS)}
        self._store = replace(store, timeout_s=_TIMEOUT_S, settings={**limits, **store.settings})
        # ClickHouse does not notice that a client went away while it plans a statement, and refuses one of the same id
        # meanwhile: on an overloaded server computations do not pile up.
        self._of_computation = {"query_id": f"headroom-minute-{uuid.uuid4()}"}
        self._computed = computed
        self._thresholds = thresholds
        self._owners = owners or OwnersInForce()
        self._now_ms = now_ms
        self._thresholds_are_stored = False
        self._since_ms = now_ms() - _AT_START_MS
        self._rows: dict[int, int] = {}  # rows of each minute when it was computed
        self._pending: dict[int, int] = {}  # minutes to compute, and their rows
        self._tried_s = 0  # the newest minute that was tried
        self._telemetry_from_s = 0  # minutes before are computed without telemetry
        self._not_before_ms = 0  # for other minutes, and for another try

    def task(self) -> PeriodicTask:
        """Looks whether a minute has ended, or more rows have arrived."""
        return PeriodicTask("levels of the last minute", _EVERY_MS, self.step, on_the_clock=True)

    def follow(self, thresholds: Thresholds) -> None:
        """From the next minute that is computed on."""
        self._thresholds = thresholds
        self._thresholds_are_stored = False

    async def step(self) -> None:
        """Computes one minute: the newest that has ended, else the oldest that received rows. Raises
        ConnectionError."""
        if not self._thresholds_are_stored:
            await self._store_thresholds()
        newest_s = (self._now_ms() // 1000 - WINDOW_S - _COMPLETE_AFTER_S) // WINDOW_S * WINDOW_S
        await self._look(newest_s)
        if newest_s in self._pending and newest_s != self._tried_s:
            await self._compute(newest_s, newest_s)
        elif self._pending and self._now_ms() >= self._not_before_ms:
            await self._compute(min(self._pending), newest_s)

    async def _look(self, newest_s: int) -> None:
        """Notes the minutes whose rows have changed."""
        began_ms, first_s = self._now_ms(), newest_s - _REACH_S
        asked = {"since_ms": self._since_ms, "first_s": first_s, "last_s": newest_s}
        changed = {row["window_s"]: row["rows"] for row in await self._ask(CHANGED_MINUTES, asked)}
        self._since_ms = max(self._since_ms, began_ms - _MARGIN_MS)
        if newest_s not in self._rows:
            changed.setdefault(newest_s, 0)  # `computed` is called for each minute; the last with rows stays shown
        self._pending |= {window_s: rows for window_s, rows in changed.items() if rows != self._rows.get(window_s)}
        for noted in (self._rows, self._pending):
            for window_s in [window_s for window_s in noted if window_s < first_s]:
                del noted[window_s]

    async def _compute(self, window_s: int, newest_s: int) -> None:
        rows, began = self._pending[window_s], time.monotonic()
        try:
            owners = await in_daemon_thread(partial(self._owners.match, self._store, window_s))
            await self._write(window_s, owners)
            if window_s == newest_s:
                await self._computed(window_s)
        finally:
            took_ms = (time.monotonic() - began) * 1000
            self._tried_s = max(self._tried_s, window_s)
            self._not_before_ms = int(self._now_ms() + max(_AGAIN_MS, _PAUSE_SHARE * took_ms))
        del self._pending[window_s]
        if rows != self._rows.get(window_s):  # then the memory of the minutes that follow has changed as well
            following = range(window_s + WINDOW_S, window_s + (MEMORY_WINDOWS + 1) * WINDOW_S, WINDOW_S)
            self._pending = {at: self._rows[at] for at in following if at in self._rows} | self._pending
        self._rows[window_s] = rows

    async def _write(self, window_s: int, owners: int) -> None:
        has_telemetry = window_s >= self._telemetry_from_s
        parameters = minute_parameters(window_s, self._thresholds, owners=owners, telemetry=has_telemetry)
        try:
            await self._run(compute_minute(self._thresholds), parameters, self._of_computation)
        except StoreError as exc:
            if exc.code == QUERY_WITH_SAME_ID_IS_ALREADY_RUNNING:
                raise StoreAwayError("the server is still at the computation before") from exc
            if exc.code and has_telemetry:  # the server refused or gave up; one that is away is asked again as before
                self._telemetry_from_s = window_s + _WITHOUT_TELEMETRY_S
            raise

    async def _store_thresholds(self) -> None:
        """Writes the thresholds into the store unless it has them."""
        thresholds = self._thresholds
        stored = await self._ask(THRESHOLDS, {})
        if not stored or Thresholds(**stored[0]) != thresholds:
            await self._run(SET_THRESHOLDS, thresholds._asdict(), {})
        self._thresholds_are_stored = thresholds == self._thresholds

    async def _ask(self, sql: str, parameters: Mapping[str, object]) -> list[Row]:
        return await in_daemon_thread(partial(self._changes.rows, sql, parameters))

    async def _run(self, sql: str, parameters: Mapping[str, object], settings: Mapping[str, str]) -> None:
        await in_daemon_thread(partial(self._store.command, sql, parameters, settings=settings))
