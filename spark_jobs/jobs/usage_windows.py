"""Reads usage as windows, from the minutes of usage_1m, which is brought up to date first.

Limits that rows lack are resolved here, by the driver: rows of the gateway and of JMX have theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from exporters.clickhouse.client import ClickHouse
from exporters.model import QuotaLimit
from quota_metrics.minutes.records import records
from quota_metrics.minutes.resolved_limits import resolved_limits
from quota_metrics.minutes.rows import ClientLimits
from quota_metrics.minutes.usage_minutes import complete
from quota_metrics.minutes.windows import windows_of
from spark_jobs.clickhouse import queries
from spark_jobs.clickhouse.slices import StepWeight, slices_of_clients, slices_of_time, step_ms
from spark_jobs.clickhouse.source import in_tasks
from spark_jobs.session import parallelism
from spark_jobs.time_range import TimeRange

_NO_LIMITS = ClientLimits({})


class CountedRange(NamedTuple):
    """A range whose minutes usage_1m has, with their row counts, ordered by time. `bad`: rows that are not usable."""

    when: TimeRange
    source: str
    counts: list[dict[str, Any]]
    bad: int

    def since(self, from_ms: int) -> list[dict[str, Any]]:
        """The counts from `from_ms` on."""
        return [count for count in self.counts if count["start_ms"] > from_ms - step_ms(self.when)]


def counted(clickhouse: ClickHouse, when: TimeRange, source: str, cluster: str) -> CountedRange:
    """Brings usage_1m up to date and counts the rows. Raises StoreError."""
    complete(clickhouse, source, when.from_ms, when.to_ms)
    span = {
        "from_ms": when.from_ms,
        "to_ms": when.to_ms,
        "step_ms": step_ms(when),
        "source": source,
        "cluster": cluster,
    }
    (bad,) = clickhouse.rows(queries.BAD_ROWS, span)
    return CountedRange(when, source, clickhouse.rows(queries.COUNTS, span), bad["bad"])


def limits_of(clickhouse: ClickHouse, hours: CountedRange, cluster: str) -> ClientLimits:
    """The limits of clients whose rows do not have them. Raises StoreError."""
    if not any(count["unresolved"] for count in hours.counts):
        return _NO_LIMITS
    when = hours.when
    span = {"from_ms": when.from_ms, "to_ms": when.to_ms, "source": hours.source, "cluster": cluster}
    clients = records(clickhouse.table(queries.UNRESOLVED_CLIENTS, span), lambda *names: names)
    history = records(clickhouse.table(queries.LIMITS, span), QuotaLimit)
    return ClientLimits(resolved_limits(clients, history, when.from_ms, when.to_ms))


def slices_of(clickhouse: ClickHouse, hours: CountedRange, cores: int, limits: ClientLimits) -> list[dict[str, Any]]:
    """Query parameters of each slice of the range. Raises StoreError."""
    weights = [StepWeight(row["cluster"], row["quota_key"], row["start_ms"], row["weight"]) for row in hours.counts]
    of_time = ({**part, "source": hours.source} for part in slices_of_time(weights, hours.when, cores))
    return list(slices_of_clients(clickhouse, of_time, limits))


def read_usage(
    spark: SparkSession, clickhouse: ClickHouse, hours: CountedRange, limits: ClientLimits = _NO_LIMITS
) -> DataFrame:
    """Rows of USAGE_SCHEMA, one Spark task per slice: the windows of `hours.when`. Raises StoreError."""
    slices = slices_of(clickhouse, hours, parallelism(spark.sparkContext), limits)
    when = hours.when

    def windows(number: int) -> Iterator[pa.Table]:
        minutes = clickhouse.table(slice_of_minutes(), slices[number])
        yield windows_of(minutes, when.window_s, when.to_ms, limits)

    return in_tasks(spark, len(slices), windows, queries.USAGE_SCHEMA)


@cache
def slice_of_minutes() -> str:
    """The SELECT of the rows of usage_1m of a slice."""
    return (files("spark_jobs.clickhouse") / "slice_of_minutes.sql").read_text(encoding="utf-8")
