"""Computes the levels of 60 seconds from what the store has, and writes them: minutes, and the last 60 seconds.

The windows of all clients are made at once (windows.py), then the verdict of each client follows from its window and
its memory (quota_metrics.verdict). The memory as of the newest minute stays here; that of another minute is restored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from exporters.clickhouse.client import ClickHouse
from exporters.model import BYTE_KEYS
from quota_metrics.config.resolution import CLIENT_KEYS
from quota_metrics.minutes.columns import joined_codes
from quota_metrics.minutes.memories import AsOf, Client, Cluster, restored
from quota_metrics.minutes.records import paused_collector, records
from quota_metrics.minutes.resolved_limits import recorded_limits
from quota_metrics.minutes.surroundings import ClientFacts, ClientReports, read_reports
from quota_metrics.minutes.teams import Teams
from quota_metrics.minutes.usage_minutes import insert_in_parts, last_seconds, store_minute
from quota_metrics.minutes.windows import window_rows, windows_of
from quota_metrics.verdict.evaluate import Verdict, evaluate
from quota_metrics.verdict.level_and_reason import is_worth_a_row
from quota_metrics.verdict.thresholds import Thresholds
from quota_metrics.verdict.window import MINUTE_MS, SUMMED, WINDOW_S, Memory, Window

_KEPT: Final = 3  # memories: before and after the newest minute, and of one that is computed again

_TEXT = pa.string()
_CODED = pa.dictionary(pa.int32(), pa.string())
# The columns of headroom_minutes and headroom_live, and their Arrow types. Most are a field of Window or Verdict.
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
_OF_VERDICTS = {
    name: _TEXT if kind == _CODED else pa.bool_() if kind == pa.uint8() else kind
    for name, kind in _COLUMNS.items()
    if name in Verdict._fields
}
_AT_ONCE: Final = 512  # verdicts whose columns are made: those of all clients would not stay in the processor's caches


class LiveLevels:
    """Computes over `store`. `now_ms`: wall clock. Not for several threads."""

    def __init__(self, store: ClickHouse, now_ms: Callable[[], int], teams: Teams | None = None) -> None:
        self._store = store
        self._teams = teams or Teams()
        self._now_ms = now_ms
        self._memories: dict[int, AsOf] = {}  # by minute

    @paused_collector()
    def compute_minute(self, start_s: int, thresholds: Thresholds, *, telemetry: bool = True) -> None:
        """Writes a minute that has ended, beside older computations of it, and its rows of usage_1m. Raises
        StoreError."""
        start_ms = 1000 * start_s
        windows = self._windows(store_minute(self._store, start_ms), start_ms)
        reports = read_reports(self._store, start_ms, telemetry=telemetry and windows.num_rows > 0)
        before = self._as_of(start_ms)
        judged = _judged(windows, before, reports, thresholds)
        self._write("headroom_minutes", start_ms, judged, reports)
        self._memories[start_ms + MINUTE_MS] = before.after(judged.memories, judged.used)
        while len(self._memories) > _KEPT:
            del self._memories[min(self._memories)]

    @paused_collector()
    def compute_last(self, start_ms: int, thresholds: Thresholds, *, telemetry: bool = True) -> None:
        """Writes the 60 seconds from `start_ms` on, a whole second, with the memory of the minute in which they begin.
        They are no part of the memory. Raises StoreError."""
        rows = last_seconds(self._store, start_ms)
        if not rows.num_rows:
            return
        windows = self._windows(rows, start_ms)
        reports = read_reports(self._store, start_ms, telemetry=telemetry)
        before = self._as_of(start_ms - start_ms % MINUTE_MS)
        self._write("headroom_live", start_ms, _judged(windows, before, reports, thresholds), reports)

    def _windows(self, rows: pa.Table, start_ms: int) -> pa.Table:
        """Rows that others insert may lack the limit: the history of quotas has it, as for a job."""
        end_ms = start_ms + MINUTE_MS
        unknown = rows.filter(pc.equal(rows["limit_known"], pa.scalar(0))).select(
            ["cluster", "quota_key", "user", "client_id"]
        )
        clients = {client for client in records(unknown) if client[1] in CLIENT_KEYS}
        return windows_of(rows, WINDOW_S, end_ms, recorded_limits(self._store, clients, start_ms, end_ms))

    def _as_of(self, minute_ms: int) -> AsOf:
        if minute_ms not in self._memories:
            self._memories[minute_ms] = restored(self._store, minute_ms)
        return self._memories[minute_ms]

    def _write(self, table: str, start_ms: int, judged: _Judged, reports: ClientReports) -> None:
        if not judged.verdicts:
            return
        now_ms = self._now_ms()
        rows = _rows(judged, start_ms // 1000, now_ms, self._of_clients(judged.windows, reports, now_ms))
        insert_in_parts(self._store, table, rows)

    def _of_clients(self, windows: pa.Table, reports: ClientReports, now_ms: int) -> dict[str, Any]:
        """Columns that tell of the client of each window."""
        names: list[Any] = [windows.column(name).combine_chunks() for name in ("cluster", "user", "client_id")]
        codes = joined_codes([name.indices.to_numpy().astype(np.int64) for name in names])
        _, first, place = np.unique(codes, return_index=True, return_inverse=True)
        clients = list(zip(*(name.take(first).cast(_TEXT).to_pylist() for name in names), strict=True))
        self._teams.match(self._store, (client[1:] for client in clients), now_ms)
        facts = zip(*map(reports.facts, clients), strict=True)
        columns = {
            **dict(zip(ClientFacts._fields, facts, strict=True)),
            "team": [self._teams.team(client[1:]) for client in clients],
            "client_place": range(1, len(clients) + 1),
        }
        return {name: _array(name, column).take(place) for name, column in columns.items()}


class _Judged(NamedTuple):
    """The verdicts on all clients, the memory that they leave, and the clusters that have usage."""

    windows: pa.Table  # that of each verdict
    verdicts: list[pa.Table]
    memories: dict[Client, Memory]
    used: frozenset[Cluster]


def _judged(windows: pa.Table, before: AsOf, reports: ClientReports, thresholds: Thresholds) -> _Judged:
    """All windows count as those of the minute after `before`; those of a client are adjacent."""
    minute = pa.array(np.full(windows.num_rows, before.minute_ms))
    windows = windows.set_column(windows.column_names.index("window_start_ms"), "window_start_ms", minute)
    observed, nothing = before.observed(), Memory()
    are_rows: list[bool] = []
    parts: list[pa.Table] = []
    verdicts: list[Verdict] = []
    memories: dict[Client, Memory] = {}
    for client, of_client in groupby(_worth_a_row(windows, are_rows), key=itemgetter(slice(5))):
        cluster, source, _, user, client_id = client
        memory = before.memories.get(client, nothing)
        surroundings = reports.surroundings(
            (cluster, user, client_id),
            observed=(cluster, source) in observed,
            explains_onset=memory.onset is not None and not memory.onset.cause,
        )
        of_brokers, memories[client] = evaluate(list(of_client), surroundings, memory, thresholds, MINUTE_MS)
        verdicts += of_brokers
        if len(verdicts) >= _AT_ONCE:
            parts.append(_columns(verdicts))
            verdicts = []
    if verdicts:
        parts.append(_columns(verdicts))
    used = frozenset(client[:2] for client in memories if client[2] in BYTE_KEYS)
    return _Judged(windows.filter(pa.array(are_rows, pa.bool_())), parts, memories, used)


def _worth_a_row(windows: pa.Table, are_rows: list[bool]) -> Iterator[Window]:
    """The windows that are worth one; appends for each of all whether it is."""
    for window in window_rows(windows):
        is_row = is_worth_a_row(window)
        are_rows.append(is_row)
        if is_row:
            yield window


def _columns(verdicts: Sequence[Verdict]) -> pa.Table:
    """Their fields that are columns of a table of levels."""
    fields: dict[str, Sequence[Any]] = dict(zip(Verdict._fields, zip(*verdicts, strict=True), strict=True))
    fields["own_reason"] = _if_different(fields["own_reason"], fields["reason"])
    fields["own_cause"] = _if_different(fields["own_cause"], fields["cause"])
    return pa.table({name: pa.array(fields[name], kind) for name, kind in _OF_VERDICTS.items()})


def _rows(judged: _Judged, start_s: int, computed_ms: int, of_clients: Mapping[str, Any]) -> pa.Table:
    """The rows of a table of levels. `of_clients`: the columns that tell of the client."""
    windows, verdicts = judged.windows, pa.concat_tables(judged.verdicts).combine_chunks()
    others = {
        **of_clients,
        "window_start": np.full(windows.num_rows, start_s),
        "computed_at": np.full(windows.num_rows, computed_ms),
        "window_s": windows.column("elapsed_s"),
        "limit_known": pc.not_equal(windows.column("state").cast(_TEXT), pa.scalar("unknown")),
        "muted_ms": pc.round(windows.column("muted_ms")),
    }
    columns = {name: table.column(name) for table in (windows, verdicts) for name in table.column_names} | others
    return pa.table({name: _array(name, columns[name]) for name in _COLUMNS})


def _if_different(texts: Sequence[str], others: Sequence[str]) -> list[str]:
    return ["" if text == other else text for text, other in zip(texts, others, strict=True)]


def _array(name: str, values: Any) -> Any:
    """A column of a table of levels."""
    array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
    return array.cast(_COLUMNS[name])
