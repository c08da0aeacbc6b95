"""Reads usage as windows: whole hours from usage_1m, which is brought up to date first, the rest from quota_usage.

Both give the same rows. usage_1m costs a third, and a range of weeks reads what other runs have computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial, reduce
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.clickhouse import queries, rollup
from spark_jobs.clickhouse.client import ClickHouse
from spark_jobs.clickhouse.divisions import divided
from spark_jobs.clickhouse.publication import Run
from spark_jobs.clickhouse.slices import Count, slices, step_ms
from spark_jobs.clickhouse.source import read_divided
from spark_jobs.clickhouse.usage_query import SETTINGS, usage
from spark_jobs.time_range import THROTTLE_LOOKBACK_MS, TimeRange


class Part(NamedTuple):
    """A part of the range with its row counts, ordered by time. `stored`: read from usage_1m."""

    when: TimeRange
    stored: bool
    counts: list[dict[str, Any]]

    def since(self, from_ms: int) -> list[dict[str, Any]]:
        """The counts from `from_ms` on, without rows before the part whose throttle times may extend into it."""
        first_ms = max(from_ms, self.when.from_ms) - step_ms(self.when)
        return [count for count in self.counts if count["start_ms"] > first_ms]


def parts(when: TimeRange) -> list[tuple[TimeRange, bool]]:
    """Splits the range into what is read from quota_usage (False) and whole hours that usage_1m holds (True)."""
    first_ms = when.from_ms + -when.from_ms % rollup.HOUR_MS
    last_ms = when.to_ms - when.to_ms % rollup.HOUR_MS
    if when.window_s % 60 or 3600 % when.window_s or first_ms >= last_ms:
        return [(when, False)]
    bounds = [(when.from_ms, first_ms, False), (first_ms, last_ms, True), (last_ms, when.to_ms, False)]
    return [(replace(when, from_ms=start, to_ms=end), stored) for start, end, stored in bounds if start < end]


def counted(clickhouse: ClickHouse, when: TimeRange, source: str, cluster: str) -> list[Part]:
    """Brings usage_1m up to date and counts the rows of each part of the range. Raises SourceError."""
    return [
        stored_counts(clickhouse, part, source, cluster) if stored else _raw_counts(clickhouse, part, source, cluster)
        for part, stored in parts(when)
    ]


def stored_counts(clickhouse: ClickHouse, when: TimeRange, source: str, cluster: str) -> Part:
    """The rows of usage_1m, which is brought up to date first. Raises SourceError."""
    rollup.refresh(clickhouse, source, when.from_ms, when.to_ms)
    bounds = _bounds(when, source, cluster)
    counts = clickhouse.rows(queries.COUNTS_STORED, bounds)
    if counts:
        bad = clickhouse.rows(queries.BAD_STORED, bounds)[0]["bad"]
        counts[-1].update(bad=bad, samples=counts[-1]["samples"] + bad)
    return Part(when, True, counts)


def _raw_counts(clickhouse: ClickHouse, when: TimeRange, source: str, cluster: str) -> Part:
    bounds = {**_bounds(when, source, cluster), "from_ms": max(when.from_ms - THROTTLE_LOOKBACK_MS, 0)}
    return Part(when, False, clickhouse.rows(queries.COUNTS, bounds))


def _bounds(when: TimeRange, source: str, cluster: str) -> dict[str, Any]:
    times = {"from_ms": when.from_ms, "to_ms": when.to_ms, "window_ms": when.window_ms, "step_ms": step_ms(when)}
    return {**times, "source": source, "cluster": cluster}


def read_usage(spark: SparkSession, clickhouse: ClickHouse, run_of: Run, found: list[Part]) -> DataFrame:
    """Rows of USAGE_SCHEMA over all parts, one Spark task per slice."""
    cores = spark.sparkContext.defaultParallelism
    of_run = {"source": run_of.source, "run": str(run_of.id)}
    frames = []
    for stored in (False, True):
        pieces = [
            piece for part in found if part.stored is stored for piece in slices_of(clickhouse, part, cores, of_run)
        ]
        if pieces:
            query = partial(_usage, run_of.when.window_s, stored=stored)
            frames.append(read_divided(spark, clickhouse, query, queries.USAGE_SCHEMA, pieces))
    return reduce(DataFrame.unionAll, frames)


def _usage(window_s: int, *, stored: bool, divided: bool) -> str:
    return f"{usage(window_s, stored=stored, divided=divided)} {SETTINGS}"


def slices_of(clickhouse: ClickHouse, part: Part, cores: int, of_run: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Query parameters of each slice of the part, see `slices` and `divisions`."""
    counts = [Count(row["cluster"], row["quota_key"], row["start_ms"], row["weight"]) for row in part.counts]
    pieces = ({**piece, **of_run} for piece in slices(counts, part.when, cores))
    return divided(clickhouse, pieces, stored=part.stored)
