"""Makes minutes of usage, by the statement of usage_1m.sql: the one of `headroom serve`, and those that a job lacks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from functools import cache
from typing import Any, Final, NamedTuple

import pyarrow as pa

from exporters.clickhouse.client import ClickHouse
from exporters.clickhouse.schema import filled
from quota_metrics.minutes.records import statement
from quota_metrics.verdict.thresholds import LARGEST_RATE, MUTED_LOOKBACK_MS

MINUTE_MS: Final = 60_000
_MUTED_MINUTES: Final = MUTED_LOOKBACK_MS // MINUTE_MS  # after a minute, in which its samples may still mute clients
_ROWS_AT_ONCE: Final = 10_000_000  # samples of minutes that one statement computes, if they are several
_DAY_MS: Final = 86_400_000


class SampleTable(StrEnum):
    """Where samples are read."""

    ALL = "quota_usage"
    RECENT = "quota_usage_recent"  # of the last hours, ordered by minute


class _Counted(NamedTuple):
    """What was there of a minute before it was computed."""

    source: str
    minute_ms: int
    rows: int
    newest_ms: int
    bad_rows: Mapping[str, int]
    is_dirty: bool
    is_marked: bool


def minutes(table: SampleTable) -> str:
    """The SELECT of rows of usage_1m, in the order of its columns. Parameters: from_ms, to_ms, computed_ms, source and
    cluster ('': all)."""
    return _statement("usage_1m", table)


def last_seconds(clickhouse: ClickHouse, start_ms: int) -> pa.Table:
    """Rows as those of usage_1m, of the 60 seconds from a whole second on. Raises StoreError."""
    return clickhouse.table(minutes(SampleTable.RECENT), {**_minute(start_ms), "cluster": "", "computed_ms": 0})


def has_samples(clickhouse: ClickHouse, start_ms: int) -> bool:
    """Whether there are samples of 60 seconds, or of the time before in which they may mute clients. Costs little;
    without any there is nothing to compute. Raises StoreError."""
    span = {"from_ms": start_ms - MUTED_LOOKBACK_MS, "to_ms": start_ms + MINUTE_MS}
    return bool(clickhouse.rows(_statement("any"), span))


def stored_minute(clickhouse: ClickHouse, start_ms: int) -> pa.Table:
    """The rows of usage_1m of a minute. Raises StoreError."""
    return clickhouse.table(_statement("stored"), _minute(start_ms))


def store_minute(clickhouse: ClickHouse, start_ms: int) -> None:
    """Computes a minute of the last hours of all sources. Raises StoreError.

    When late rows are why, it stays for a job to compute it, too: they may mute clients in the minutes after it.
    """
    if not has_samples(clickhouse, start_ms):
        return
    counts = _counts(clickhouse, SampleTable.RECENT, _minute(start_ms))
    unmarked = [count for count in counts if not count.is_marked]
    _store(clickhouse, SampleTable.RECENT, _minute(start_ms), unmarked)


def complete(clickhouse: ClickHouse, source: str, from_ms: int, to_ms: int) -> int:
    """Computes the minutes that overlap the range and are missing in usage_1m, or were made of fewer samples; returns
    how many there were. Samples before the range may mute clients in it, so their minutes count. Raises StoreError."""
    from_ms = max(from_ms - from_ms % MINUTE_MS - MUTED_LOOKBACK_MS, 0)
    to_ms = to_ms + -to_ms % MINUTE_MS
    dirty = 0
    for start_ms in range(from_ms, to_ms, _DAY_MS):
        end_ms = min(start_ms + _DAY_MS, to_ms)
        counts = _counts(clickhouse, SampleTable.ALL, {"from_ms": start_ms, "to_ms": end_ms, "source": source})
        missing = {count.minute_ms for count in counts if count.is_dirty}
        dirty += len(missing)
        for first_ms, last_ms in _ranges(missing, counts):
            of_range = [count for count in counts if first_ms <= count.minute_ms < last_ms]
            span = {"from_ms": first_ms, "to_ms": last_ms, "source": source}
            _store(clickhouse, SampleTable.ALL, span, of_range)
    return dirty


def _ranges(missing: Iterable[int], counts: Iterable[_Counted]) -> Iterator[tuple[int, int]]:
    """Ranges of adjacent minutes: those that are missing, and those after them in which they may mute clients."""
    rows = {count.minute_ms: count.rows for count in counts}
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


def _counts(clickhouse: ClickHouse, table: SampleTable, span: Mapping[str, Any]) -> list[_Counted]:
    rows = clickhouse.table(_statement("counted", table), span).to_pylist()
    return [_Counted(**{**row, "bad_rows": dict(row["bad_rows"])}) for row in rows]


def _store(clickhouse: ClickHouse, table: SampleTable, span: Mapping[str, Any], counts: list[_Counted]) -> None:
    """Computes a range. The marks are what was counted before: of a sample that came later nobody knows whether the
    statement read it."""
    computed_ms = time.time_ns() // 1_000_000
    computed = {**span, "computed_ms": computed_ms}
    clickhouse.command(f"INSERT INTO usage_1m {minutes(table)}", {**computed, "cluster": ""})
    clickhouse.command(_statement("replace"), computed)
    if counts:
        token = f"{span['source']}/{span['from_ms']}/{computed_ms}"
        bad_rows = [list(count.bad_rows.items()) for count in counts]
        marks = pa.table(
            {
                "source": pa.array([count.source for count in counts]),
                "window_start": pa.array([count.minute_ms // 1000 for count in counts], pa.timestamp("s", "UTC")),
                "rows": pa.array([count.rows for count in counts], pa.uint64()),
                "newest": pa.array([count.newest_ms for count in counts], pa.timestamp("ms", "UTC")),
                "computed_at": pa.array([computed_ms] * len(counts), pa.timestamp("ms", "UTC")),
                "bad_rows": pa.array(bad_rows, pa.map_(pa.string(), pa.uint64())),
            }
        )
        clickhouse.insert("usage_1m_windows", marks, token=token)


def _minute(start_ms: int) -> dict[str, Any]:
    """60 seconds of all sources."""
    return {"from_ms": start_ms, "to_ms": start_ms + MINUTE_MS, "source": ""}


@cache
def _statement(name: str, table: SampleTable = SampleTable.ALL) -> str:
    """The text of a file of this package. `pruned`: what the key of the table of recent samples needs."""
    pruned = "minute BETWEEN toStartOfMinute(fromUnixTimestamp64Milli({})) AND fromUnixTimestamp64Milli({}) AND"
    is_recent = table is SampleTable.RECENT
    values = {
        "samples": table.value,
        "largest_rate": f"{LARGEST_RATE:.0f}",
        "muted_lookback_ms": MUTED_LOOKBACK_MS,
        "pruned": pruned.format("{from_ms:Int64}", "{to_ms:Int64}") if is_recent else "",
        "pruned_before": (
            pruned.format(f"{{from_ms:Int64}} - {MUTED_LOOKBACK_MS}", "{to_ms:Int64}") if is_recent else ""
        ),
    }
    return filled(statement(name), values)
