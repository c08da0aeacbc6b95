"""Makes minutes of usage, by the statement of usage_1m.sql: the one of `headroom serve`, and those that a job lacks."""

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from functools import cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from exporters.clickhouse.client import ClickHouse, Row
from exporters.clickhouse.schema import filled
from quota_metrics.minutes.columns import joined_codes, lists, numbers
from quota_metrics.minutes.records import statement
from quota_metrics.verdict.thresholds import LARGEST_RATE, MUTED_LOOKBACK_MS
from quota_metrics.verdict.window import MINUTE_MS

_MUTED_MINUTES: Final = MUTED_LOOKBACK_MS // MINUTE_MS  # after a minute, in which its samples may still mute clients
_ROWS_AT_ONCE: Final = 10_000_000  # samples of minutes that one statement computes, if they are several
_DAY_MS: Final = 86_400_000
_AT_ONCE: Final = 100_000  # rows of one insert
_CLIENT: Final = ("cluster", "source", "quota_key", "user", "client_id", "broker_id", "gateway_id", "ip")


class SampleTable(StrEnum):
    """Where samples are read."""

    ALL = "quota_usage"
    RECENT = "quota_usage_recent"  # of the last hours, ordered by minute


def minutes(table: SampleTable, *, final: bool = True) -> str:
    """The SELECT of rows of usage_1m, in the order of its columns. Parameters: from_ms, to_ms, computed_ms, source and
    cluster ('': all). `final`: without samples that were stored twice."""
    return _statement("usage_1m", table, final=final)


def last_seconds(clickhouse: ClickHouse, start_ms: int, computed_ms: int = 0) -> pa.Table:
    """Rows as those of usage_1m, of the 60 seconds from a whole second on. Raises StoreError.

    FINAL leaves out samples that were stored twice, for as much time as all the rest takes. Without it the rows are the
    same if none were: then each client has one row, and each of its samples a rate of its own.
    """
    span = {**_minute(start_ms), "computed_ms": computed_ms}
    if not clickhouse.rows(_statement("any"), {**span, "from_ms": start_ms - MUTED_LOOKBACK_MS}):
        return clickhouse.table("SELECT * FROM usage_1m LIMIT 0")  # planned in much less time
    rows = clickhouse.table(minutes(SampleTable.RECENT, final=False), span)
    names = [rows[name].combine_chunks().dictionary_encode().indices.to_numpy() for name in _CLIENT]
    rates = np.count_nonzero(np.isfinite(lists(rows["rates"], np.float64)[0]))
    if len(np.unique(joined_codes(names))) == rows.num_rows and rates == numbers(rows, "samples", np.int64).sum():
        return rows
    return clickhouse.table(minutes(SampleTable.RECENT), span)


def store_minute(clickhouse: ClickHouse, start_ms: int) -> pa.Table:
    """Computes a minute of the last hours of all sources, stores its rows and returns them. Raises StoreError.

    When late rows are why, it stays for a job to compute it, too: they may mute clients in the minutes after it.
    """
    computed = {**_minute(start_ms), "computed_ms": time.time_ns() // 1_000_000}
    marked = {row["source"] for row in clickhouse.rows(_statement("marked"), computed)}
    rows = last_seconds(clickhouse, start_ms, computed["computed_ms"])
    insert_in_parts(clickhouse, "usage_1m", rows)
    if rows.num_rows:
        clickhouse.command(_statement("replace"), computed)
    sums = rows.group_by("source").aggregate([("samples", "sum"), ("newest", "max")])
    counts = [
        {"source": source, "minute_ms": start_ms, "rows": samples, "newest_ms": round(1000 * newest.timestamp())}
        for source, samples, newest in zip(*sums.to_pydict().values(), strict=True)
        if samples and source not in marked
    ]
    _mark(clickhouse, computed, counts)
    return rows


def insert_in_parts(clickhouse: ClickHouse, table: str, rows: pa.Table) -> None:
    """Writes rows that are computed again, and not sent again, after a failure. Raises StoreError."""
    for first in range(0, rows.num_rows, _AT_ONCE):
        clickhouse.insert(table, rows.slice(first, _AT_ONCE), token=uuid.uuid4().hex)


def complete(clickhouse: ClickHouse, source: str, from_ms: int, to_ms: int) -> int:
    """Computes the minutes that overlap the range and are missing in usage_1m, or were made of fewer samples; returns
    how many there were. Samples before the range may mute clients in it, so their minutes count. Raises StoreError."""
    from_ms = max(from_ms - from_ms % MINUTE_MS - MUTED_LOOKBACK_MS, 0)
    to_ms = to_ms + -to_ms % MINUTE_MS
    dirty = 0
    for start_ms in range(from_ms, to_ms, _DAY_MS):
        day = {"from_ms": start_ms, "to_ms": min(start_ms + _DAY_MS, to_ms), "source": source}
        # The marks are what is counted before: of a sample that comes later nobody knows whether the statement read it.
        counts = clickhouse.table(_statement("counted"), day).to_pylist()
        missing = {count["minute_ms"] for count in counts if count["is_dirty"]}
        dirty += len(missing)
        for first_ms, last_ms in _ranges(missing, counts):
            span = {
                **day,
                "from_ms": first_ms,
                "to_ms": last_ms,
                "cluster": "",
                "computed_ms": time.time_ns() // 1_000_000,
            }
            clickhouse.command(f"INSERT INTO usage_1m {minutes(SampleTable.ALL)}", span)
            clickhouse.command(_statement("replace"), span)
            _mark(clickhouse, span, [count for count in counts if first_ms <= count["minute_ms"] < last_ms])
    return dirty


def _ranges(missing: Iterable[int], counts: Iterable[Row]) -> Iterator[tuple[int, int]]:
    """Ranges of adjacent minutes: those that are missing, and those after them in which they may mute clients."""
    rows = {count["minute_ms"]: count["rows"] for count in counts}
    reached = {at + n * MINUTE_MS for at in missing for n in range(_MUTED_MINUTES + 1)}
    start_ms = end_ms = weight = 0
    for minute_ms in sorted(reached):
        if minute_ms != end_ms or weight + rows.get(minute_ms, 0) > _ROWS_AT_ONCE:
            if end_ms > start_ms:
                yield start_ms, end_ms
            start_ms, weight = minute_ms, 0
        end_ms, weight = minute_ms + MINUTE_MS, weight + rows.get(minute_ms, 0)
    if end_ms > start_ms:
        yield start_ms, end_ms


def _mark(clickhouse: ClickHouse, span: Mapping[str, Any], counts: list[Row]) -> None:
    """Says from which samples (rows of counted.sql) the minutes of a range were made, when their rows are stored."""
    if counts:
        token = f"{span['source']}/{span['from_ms']}/{span['computed_ms']}"
        bad_rows = [count.get("bad_rows", []) for count in counts]
        marks = pa.table(
            {
                "source": pa.array([count["source"] for count in counts]),
                "window_start": pa.array([count["minute_ms"] // 1000 for count in counts], pa.timestamp("s", "UTC")),
                "rows": pa.array([count["rows"] for count in counts], pa.uint64()),
                "newest": pa.array([count["newest_ms"] for count in counts], pa.timestamp("ms", "UTC")),
                "computed_at": pa.array([span["computed_ms"]] * len(counts), pa.timestamp("ms", "UTC")),
                "bad_rows": pa.array(bad_rows, pa.map_(pa.string(), pa.uint64())),
            }
        )
        clickhouse.insert("usage_1m_windows", marks, token=token)


def _minute(start_ms: int) -> dict[str, Any]:
    """60 seconds of all sources and clusters."""
    return {"from_ms": start_ms, "to_ms": start_ms + MINUTE_MS, "source": "", "cluster": ""}


@cache
def _statement(name: str, table: SampleTable = SampleTable.ALL, *, final: bool = True) -> str:
    """The text of a file of this package."""
    pruned = settings = ""
    if table is SampleTable.RECENT:  # by its key
        # Each thread would have most clients in a table of its own, and merging these takes more than it saves.
        settings = "SETTINGS max_threads = 1, group_by_two_level_threshold = 0, group_by_two_level_threshold_bytes = 0"
        pruned = "minute BETWEEN toStartOfMinute(fromUnixTimestamp64Milli({})) AND fromUnixTimestamp64Milli({}) AND"
    values = {
        "samples": table.value,
        "final": "FINAL" if final else "",
        "largest_rate": f"{LARGEST_RATE:.0f}",
        "muted_lookback_ms": MUTED_LOOKBACK_MS,
        "is_recent": int(table is SampleTable.RECENT),
        "pruned": pruned.format("{from_ms:Int64}", "{to_ms:Int64}"),
        "settings": settings,
        "pruned_before": pruned.format(f"{{from_ms:Int64}} - {MUTED_LOOKBACK_MS}", "{to_ms:Int64}"),
    }
    return filled(statement(name), values)
