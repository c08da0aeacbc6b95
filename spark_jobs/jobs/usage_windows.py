"""Reads usage as windows: whole hours from usage_1m, which is brought up to date first, the rest from quota_usage.

Both give the same rows. usage_1m costs a third, and a range of weeks reads what other runs have computed. ClickHouse
recomputes every hour of it that received rows since it was last computed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial, reduce
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from exporters.clickhouse.client import ClickHouse
from quota_metrics.levels.windows_query import BAD_NUMBER, SETTINGS, Samples, WindowsQuery, store_minutes
from spark_jobs.clickhouse import queries
from spark_jobs.clickhouse.publication import CLIENT_LIMITS, Run
from spark_jobs.clickhouse.queries import CLIENT_KEYS, COUNTS
from spark_jobs.clickhouse.slices import StepWeight, is_divided, slices_of_clients, slices_of_time, step_ms
from spark_jobs.clickhouse.source import read, read_slices, stage
from spark_jobs.time_range import THROTTLE_LOOKBACK_MS, TimeRange
from spark_jobs.transforms.quota_precedence import client_limits

HOUR_MS = 3_600_000
_MARGIN_MS = 60_000  # an insert in progress may become visible after its received_at

_KEYS = ", ".join(f"'{key}'" for key in CLIENT_KEYS)
_DIRTY = f"""
SELECT hour_ms, newest_ms FROM (
    SELECT intDiv(toUnixTimestamp64Milli(ts), {HOUR_MS}) * {HOUR_MS} AS hour_ms,
           toUnixTimestamp64Milli(max(received_at)) AS newest_ms
    FROM quota_usage
    WHERE ts >= fromUnixTimestamp64Milli({{from_ms:Int64}}) AND ts < fromUnixTimestamp64Milli({{to_ms:Int64}})
      AND source = {{source:String}} AND quota_key IN ({_KEYS})
    GROUP BY hour_ms
) AS u
LEFT JOIN (
    SELECT toInt64(toUnixTimestamp(window_start)) * 1000 AS hour_ms, toUnixTimestamp64Milli(computed_at) AS computed_ms
    FROM usage_1m_windows FINAL WHERE source = {{source:String}}
) AS w USING (hour_ms)
WHERE newest_ms >= computed_ms - {_MARGIN_MS}
ORDER BY hour_ms
"""  # noqa: S608 - made of our own words
_MARK = f"""
INSERT INTO usage_1m_windows (source, window_start, computed_at, bad_rows)
SELECT {{source:String}}, toDateTime(hour_s), fromUnixTimestamp64Milli({{computed_ms:Int64}}),
       mapFromArrays(groupArrayIf(cluster, bad > 0), groupArrayIf(bad, bad > 0))
FROM (
    SELECT intDiv(toInt64(toUnixTimestamp(ts)), 3600) * 3600 AS hour_s, toString(cluster) AS cluster, count() AS bad
    FROM quota_usage
    WHERE ts >= fromUnixTimestamp64Milli({{from_ms:Int64}}) AND ts < fromUnixTimestamp64Milli({{to_ms:Int64}})
      AND source = {{source:String}} AND quota_key IN ({_KEYS}) AND {BAD_NUMBER}
    GROUP BY hour_s, cluster
    UNION ALL
    SELECT arrayJoin(range(intDiv({{from_ms:Int64}}, 1000), intDiv({{to_ms:Int64}}, 1000), 3600)), '', 0
)
GROUP BY hour_s"""  # noqa: S608 - made of our own words


class CountedRange(NamedTuple):
    """A range with its row counts, ordered by time. `stored`: whole hours, read from usage_1m."""

    when: TimeRange
    stored: bool
    counts: list[dict[str, Any]]

    def since(self, from_ms: int) -> list[dict[str, Any]]:
        """The counts from `from_ms` on, without rows before the range whose throttle times may extend into it."""
        first_ms = max(from_ms, self.when.from_ms) - step_ms(self.when)
        return [count for count in self.counts if count["start_ms"] > first_ms]


def ranges(when: TimeRange) -> list[tuple[TimeRange, bool]]:
    """Splits the range into what is read from quota_usage (False) and whole hours that usage_1m holds (True)."""
    first_ms = when.from_ms + -when.from_ms % HOUR_MS
    last_ms = when.to_ms - when.to_ms % HOUR_MS
    if when.window_s % 60 or 3600 % when.window_s or first_ms >= last_ms:
        return [(when, False)]
    bounds = [(when.from_ms, first_ms, False), (first_ms, last_ms, True), (last_ms, when.to_ms, False)]
    return [(replace(when, from_ms=start, to_ms=end), stored) for start, end, stored in bounds if start < end]


def counted(clickhouse: ClickHouse, when: TimeRange, source: str, cluster: str) -> list[CountedRange]:
    """Brings usage_1m up to date and counts the rows. Raises StoreError."""
    return [
        stored_counts(clickhouse, each, source, cluster) if stored else _raw_counts(clickhouse, each, source, cluster)
        for each, stored in ranges(when)
    ]


def stored_counts(clickhouse: ClickHouse, when: TimeRange, source: str, cluster: str) -> CountedRange:
    """The rows of usage_1m, which is brought up to date first. Raises StoreError."""
    refresh(clickhouse, source, when.from_ms, when.to_ms)
    bounds = _count_bounds(when, source, cluster)
    counts = clickhouse.rows(queries.COUNTS_STORED, bounds)
    if counts:
        bad = clickhouse.rows(queries.BAD_STORED, bounds)[0]["bad"]
        counts[-1].update(bad=bad, samples=counts[-1]["samples"] + bad)
    return CountedRange(when, True, counts)


def resolve_limits(spark: SparkSession, clickhouse: ClickHouse, run_of: Run) -> None:
    """Writes the limits of all clients to quota_client_limits, which the usage query joins."""
    when = run_of.when
    bounds = {"from_ms": when.from_ms, "to_ms": when.to_ms, "source": run_of.source, "cluster": run_of.cluster}
    clients = read(spark, clickhouse, queries.CLIENTS, queries.CLIENTS_SCHEMA, [bounds])
    history = read(spark, clickhouse, queries.LIMITS, queries.LIMITS_SCHEMA, [bounds])
    stage(client_limits(clients, history, when.from_ms, when.to_ms), clickhouse, CLIENT_LIMITS, run_of)


def _raw_counts(clickhouse: ClickHouse, when: TimeRange, source: str, cluster: str) -> CountedRange:
    bounds = {**_count_bounds(when, source, cluster), "from_ms": max(when.from_ms - THROTTLE_LOOKBACK_MS, 0)}
    return CountedRange(when, False, clickhouse.rows(queries.COUNTS, bounds))


def _count_bounds(when: TimeRange, source: str, cluster: str) -> dict[str, Any]:
    times = {"from_ms": when.from_ms, "to_ms": when.to_ms, "window_ms": when.window_ms, "step_ms": step_ms(when)}
    return {**times, "source": source, "cluster": cluster}


def read_usage(spark: SparkSession, clickhouse: ClickHouse, run_of: Run, counts: list[CountedRange]) -> DataFrame:
    """Rows of USAGE_SCHEMA over all ranges, one Spark task per slice."""
    cores = spark.sparkContext.defaultParallelism
    of_run = {"source": run_of.source, "run": str(run_of.id)}
    frames = []
    for stored in (False, True):
        alike = [each for each in counts if each.stored is stored]
        slices = [one for each in alike for one in slices_of(clickhouse, each, cores, of_run)]
        if slices:
            query = partial(_usage, run_of.when.window_s, stored=stored)
            frames.append(read_slices(spark, clickhouse, query, queries.USAGE_SCHEMA, slices))
    return reduce(DataFrame.unionAll, frames)


def _usage(window_s: int, *, stored: bool, divided: bool) -> str:
    samples = Samples.MINUTES if stored else Samples.USAGE
    return f"{WindowsQuery(window_s, samples, divided).usage()} {SETTINGS}"


def slices_of(
    clickhouse: ClickHouse, counted: CountedRange, cores: int, of_run: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Query parameters of each slice of the range."""
    of_time = slices_of_time(_weights(counted.counts), counted.when, cores)
    return slices_of_clients(clickhouse, ({**each, **of_run} for each in of_time), stored=counted.stored)


def refresh(clickhouse: ClickHouse, source: str, from_ms: int, to_ms: int) -> int:
    """Recomputes the hours that overlap the range and have new rows; returns how many there were. Raises
    StoreError."""
    first_ms, last_ms = from_ms - from_ms % HOUR_MS, to_ms + -to_ms % HOUR_MS
    dirty = [row["hour_ms"] for row in clickhouse.rows(_DIRTY, _bounds(source, first_ms, last_ms))]
    for start_ms, end_ms in hour_ranges(dirty):
        _compute(clickhouse, source, start_ms, end_ms)
    return len(dirty)


def hour_ranges(hours: Iterable[int]) -> list[tuple[int, int]]:
    """Merges adjacent hours, each extended by the hour after it: a throttle time at the end of an hour extends into the
    next one."""
    merged: list[tuple[int, int]] = []
    for hour_ms in sorted({at for hour in hours for at in (hour, hour + HOUR_MS)}):
        if merged and merged[-1][1] == hour_ms:
            merged[-1] = (merged[-1][0], hour_ms + HOUR_MS)
        else:
            merged.append((hour_ms, hour_ms + HOUR_MS))
    return merged


def _compute(clickhouse: ClickHouse, source: str, start_ms: int, end_ms: int) -> None:
    computed_ms = time.time_ns() // 1_000_000
    when = TimeRange(start_ms, end_ms, 60)
    bounds = {
        **_bounds(source, start_ms - THROTTLE_LOOKBACK_MS, end_ms),
        "step_ms": step_ms(when),
        "window_ms": when.window_ms,
        "cluster": "",
    }
    counts = clickhouse.rows(COUNTS, bounds)
    of_time = [{**each, "source": source} for each in slices_of_time(_weights(counts), when, cores=1)]
    for one in slices_of_clients(clickhouse, of_time, stored=False, whole_buckets=False):
        clickhouse.command(store_minutes(divided=is_divided(one)), {**one, "computed_ms": computed_ms})
    clickhouse.command(_MARK, {**_bounds(source, start_ms, end_ms), "computed_ms": computed_ms})


def _bounds(source: str, from_ms: int, to_ms: int) -> dict[str, Any]:
    return {"source": source, "from_ms": from_ms, "to_ms": to_ms}


def _weights(rows: Iterable[dict[str, Any]]) -> list[StepWeight]:
    return [StepWeight(row["cluster"], row["quota_key"], row["start_ms"], row["weight"]) for row in rows]
