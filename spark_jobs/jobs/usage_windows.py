"""Reads usage as windows: whole hours from usage_1m, which is brought up to date first, the rest from quota_usage.

Both give the same rows. usage_1m costs a third, and a range of weeks reads what other runs have computed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.clickhouse import queries, rollup
from spark_jobs.clickhouse.client import ClickHouse
from spark_jobs.clickhouse.publication import Run
from spark_jobs.clickhouse.slices import Count, slices, step_ms
from spark_jobs.clickhouse.source import read
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
    found = []
    for part, stored in parts(when):
        bounds = {"from_ms": part.from_ms, "to_ms": part.to_ms, "source": source, "cluster": cluster}
        steps = {**bounds, "step_ms": step_ms(part)}
        if stored:
            rollup.refresh(clickhouse, source, part.from_ms, part.to_ms)
            counts = clickhouse.rows(queries.COUNTS_STORED, steps)
            if counts:
                bad = clickhouse.rows(queries.BAD_STORED, bounds)[0]["bad"]
                counts[-1].update(bad=bad, samples=counts[-1]["samples"] + bad)
        else:
            steps["from_ms"] = max(part.from_ms - THROTTLE_LOOKBACK_MS, 0)
            counts = clickhouse.rows(queries.COUNTS, steps)
        found.append(Part(part, stored, counts))
    return found


def read_usage(spark: SparkSession, clickhouse: ClickHouse, run_of: Run, found: list[Part]) -> DataFrame:
    """Rows of USAGE_SCHEMA over all parts, one Spark task per slice."""
    cores = spark.sparkContext.defaultParallelism
    of_run = {"source": run_of.source, "run": str(run_of.id)}
    frames = []
    for stored in (False, True):
        pieces = [
            {**piece, **of_run}
            for part in found
            if part.stored is stored and part.counts
            for piece in slices_of(part, cores)
        ]
        if pieces:
            query = f"{usage(run_of.when.window_s, stored=stored)} {SETTINGS}"
            frames.append(read(spark, clickhouse, query, queries.USAGE_SCHEMA, pieces))
    return frames[0] if len(frames) == 1 else frames[0].unionAll(frames[1])


def slices_of(part: Part, cores: int) -> list[dict[str, Any]]:
    """Query parameters of each slice of the part, see `slices`."""
    counts = [Count(row["cluster"], row["quota_key"], row["start_ms"], row["samples"]) for row in part.counts]
    return slices(counts, part.when, cores)
