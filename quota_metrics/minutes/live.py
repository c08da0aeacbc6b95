"""Computes the levels of 60 seconds from what the store has, and writes them: minutes, and the last 60 seconds.

The windows of all clients are made at once (windows.py), then the verdict of each client follows from its window and
its memory (quota_metrics.verdict). The memory as of the newest minute stays here; that of another minute is restored.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa

from exporters.clickhouse.client import ClickHouse
from quota_metrics.minutes.memories import MINUTE_MS, AsOf, Client, Cluster, restored
from quota_metrics.minutes.records import paused_collector
from quota_metrics.minutes.statements import has_samples, last_seconds, store_minute, stored_minute
from quota_metrics.minutes.surroundings import Around, read_around
from quota_metrics.minutes.teams import Teams
from quota_metrics.minutes.windows import window_rows, windows_of
from quota_metrics.verdict.evaluate import Verdict, evaluate
from quota_metrics.verdict.level import is_worth_a_row
from quota_metrics.verdict.memory import Memory
from quota_metrics.verdict.thresholds import MEASURED_KEYS, Thresholds
from quota_metrics.verdict.window import SUMMED, WINDOW_S, Window

_KEPT: Final = 3  # memories: before and after the newest minute, and of one that is computed again

_TEXT = pa.string()
_CODED = pa.dictionary(pa.int32(), pa.string())
# The columns of headroom_minutes and headroom_live, and their Arrow types.
_COLUMNS: Final[Mapping[str, pa.DataType]] = {
    "window_start": pa.timestamp("s", "UTC"), "computed_at": pa.timestamp("ms", "UTC"), "is_worst": pa.uint8(),
    "cluster": _CODED, "source": _CODED, "quota_key": _CODED, "user": _CODED, "client_id": _CODED,
    "broker_id": pa.int32(), "limit": pa.float64(), "usage": pa.float64(), "utilization": pa.float64(),
    "utilization_p95": pa.float64(), "throttle_ms": pa.float64(), "level": _CODED, "instant_level": _CODED,
    "reason": _TEXT, "limit_known": pa.uint8(), "matched_entity": _CODED, "bucket_user": _CODED,
    "bucket_client_id": _CODED, "usage_p95": pa.float64(), "usage_max": pa.float64(),
    "group_usage": pa.float64(), "group_p95": pa.float64(), "muted_ms": pa.int64(), "shared_with": pa.uint32(),
    "culprit_user": _CODED, "culprit_client_id": _CODED, "culprit_share": pa.float64(), "implied_limit": pa.float64(),
    "team": _CODED, "window_s": pa.uint32(), "software_name": _CODED, "software_version": _CODED,
    "instances": pa.uint32(), "pushes": pa.uint64(), "last_seen": pa.timestamp("ms", "UTC"), "impact": _CODED,
    "impact_reason": _TEXT, "cause": _TEXT, "is_onset": pa.uint8(), "own_reason": _TEXT, "own_cause": _TEXT,
    "client_place": pa.uint32(), **dict.fromkeys(SUMMED, pa.uint64()),
}  # fmt: skip
_AT_ONCE: Final = 100_000  # rows of one insert


class LiveLevels:
    """Computes over `store`. `now_ms`: wall clock. Not for several threads."""

    def __init__(self, store: ClickHouse, now_ms: Callable[[], int], teams: Teams | None = None) -> None:
        self._store = store
        self._teams = teams or Teams()
        self._now_ms = now_ms
        self._known: dict[int, AsOf] = {}  # by minute

    @paused_collector()
    def compute_minute(self, start_s: int, thresholds: Thresholds, *, telemetry: bool = True) -> None:
        """Writes a minute that has ended, beside older computations of it, and its rows of usage_1m. Raises
        StoreError."""
        start_ms = 1000 * start_s
        store_minute(self._store, start_ms)
        table = windows_of(stored_minute(self._store, start_ms), WINDOW_S, start_ms + MINUTE_MS)
        around = read_around(self._store, start_ms, telemetry=telemetry and table.num_rows > 0)
        before = self._as_of(start_ms)
        verdicts, memories, used = _verdicts(window_rows(table), start_ms, before, around, thresholds)
        self._write("headroom_minutes", start_ms, verdicts, around)
        self._known[start_ms + MINUTE_MS] = before.after(memories, used)
        while len(self._known) > _KEPT:
            del self._known[min(self._known)]

    @paused_collector()
    def compute_last(self, start_ms: int, thresholds: Thresholds, *, telemetry: bool = True) -> None:
        """Writes the 60 seconds from `start_ms` on, a whole second, with the memory of the minute in which they begin.
        They are no part of the memory. Raises StoreError."""
        if not has_samples(self._store, start_ms):
            return
        table = windows_of(last_seconds(self._store, start_ms), WINDOW_S, start_ms + MINUTE_MS)
        around = read_around(self._store, start_ms, telemetry=telemetry)
        minute_ms = start_ms - start_ms % MINUTE_MS
        verdicts, _, _ = _verdicts(window_rows(table), minute_ms, self._as_of(minute_ms), around, thresholds)
        self._write("headroom_live", start_ms, verdicts, around)

    def _as_of(self, minute_ms: int) -> AsOf:
        if minute_ms not in self._known:
            self._known[minute_ms] = restored(self._store, minute_ms)
        return self._known[minute_ms]

    def _write(self, table: str, start_ms: int, verdicts: list[Verdict], around: Around) -> None:
        if not verdicts:
            return
        now_ms = self._now_ms()
        named = sorted({(v.window.cluster, v.window.user, v.window.client_id) for v in verdicts})
        self._teams.match(self._store, (client[1:] for client in named), now_ms)
        about = {
            client: (*around.client(client), self._teams.team(client[1:]), place)
            for place, client in enumerate(named, start=1)
        }
        rows = _rows(verdicts, start_ms // 1000, now_ms, about)
        for first in range(0, rows.num_rows, _AT_ONCE):
            self._store.insert(table, rows.slice(first, _AT_ONCE), token=uuid.uuid4().hex)


def _verdicts(
    windows: list[Window], minute_ms: int, before: AsOf, around: Around, thresholds: Thresholds
) -> tuple[list[Verdict], dict[Client, Memory], frozenset[Cluster]]:
    """The verdicts on all clients, the memory that the windows leave, and the clusters that have usage."""
    by_client: dict[Client, list[Window]] = defaultdict(list)
    for window in windows:
        if is_worth_a_row(window):
            if window.window_start_ms != minute_ms:
                window = window._replace(window_start_ms=minute_ms)
            by_client[window[:5]].append(window)
    observed, nothing = before.observed(), Memory()
    verdicts: list[Verdict] = []
    memories: dict[Client, Memory] = {}
    for client, brokers in by_client.items():
        cluster, source, _, user, client_id = client
        memory = before.memories.get(client, nothing)
        surroundings = around.of(
            (cluster, user, client_id),
            observed=(cluster, source) in observed,
            explains_onset=memory.onset is not None and not memory.onset.cause,
        )
        judged, memories[client] = evaluate(brokers, surroundings, memory, thresholds, MINUTE_MS)
        verdicts += judged
    used = frozenset(client[:2] for client in by_client if client[2] in MEASURED_KEYS)
    return verdicts, memories, used


def _rows(
    verdicts: list[Verdict], start_s: int, computed_ms: int, about: Mapping[tuple[str, str, str], tuple[Any, ...]]
) -> pa.Table:
    """The rows of a table of levels. `about`: of each client (cluster, user, client-id) ClientFacts, team and place."""
    rows = [_row(verdict, start_s, computed_ms, about) for verdict in verdicts]
    columns = zip(*rows, strict=True)
    arrays = []
    for kind, values in zip(_COLUMNS.values(), columns, strict=True):
        arrays.append(pa.array(values, _TEXT).dictionary_encode() if kind is _CODED else pa.array(values, kind))
    return pa.table(arrays, names=list(_COLUMNS))


def _row(
    verdict: Verdict,
    start_s: int,
    computed_ms: int,
    about: Mapping[tuple[str, str, str], tuple[Any, ...]],
) -> tuple[Any, ...]:
    """The values of _COLUMNS."""
    window = verdict.window
    software_name, software_version, instances, pushes, last_seen_ms, team, place = about[
        window.cluster, window.user, window.client_id
    ]
    own_reason = "" if verdict.own_reason == verdict.reason else verdict.own_reason
    own_cause = "" if verdict.own_cause == verdict.cause else verdict.own_cause
    return (
        *(start_s, computed_ms, int(verdict.is_worst), *window[:6], window.limit, window.usage),
        *(verdict.utilization, verdict.utilization_p95, window.throttle_ms, verdict.level, verdict.instant_level),
        *(verdict.reason, int(window.state != "unknown"), window.matched_entity, window.bucket_user),
        *(window.bucket_client_id, window.usage_p95, window.usage_max, window.group_usage),
        *(window.group_p95, round(window.muted_ms), window.shared_with, verdict.culprit_user),
        *(verdict.culprit_client_id, verdict.culprit_share, window.implied_limit, team, window.elapsed_s),
        *(software_name, software_version, instances, pushes, last_seen_ms, verdict.impact),
        *(verdict.impact_reason, verdict.cause, int(verdict.is_onset), own_reason, own_cause, place),
        *(getattr(window, name) for name in SUMMED),
    )
