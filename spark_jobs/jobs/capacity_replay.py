"""The what-if behind a suggested limit: which clients the broker would have throttled, replayed second by second.

usage_1m holds the rate of each client and second. A bucket is over its limit in a second in which the sum of its
clients' rates at a broker is above it; the clients that were active in these five minutes are those that would have
been throttled. Traffic is taken as it was: a client that is held back sends later, which this does not replay
(`headroom quotas what-if` does, for a shorter time).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F

from spark_jobs.clickhouse import publication
from spark_jobs.clickhouse.client import ClickHouse
from spark_jobs.clickhouse.replay_query import REPLAY_SCHEMA, SUGGESTED, replay
from spark_jobs.clickhouse.source import read_divided

QUOTA = ("cluster", "source", "quota_key", "user", "client_id")
MOST_CLIENTS = 20  # of a bucket, those with most seconds
_LISTS = ("replay_users", "replay_client_ids", "replay_before_s", "replay_after_s")


def with_replay(
    spark: SparkSession, clickhouse: ClickHouse, rows: list[dict[str, Any]], slices: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Rows of the report with the clients that would have been throttled. Raises SourceError."""
    if not rows:
        return []
    _stage(clickhouse, rows, slices[0]["run"])
    nobody: dict[str, Any] = {name: [] for name in _LISTS}
    found = _throttled(spark, clickhouse, slices)
    return [{**row, **found.get(tuple(row[name] for name in QUOTA), nobody)} for row in rows]


def _stage(clickhouse: ClickHouse, rows: Iterable[dict[str, Any]], run: str) -> None:
    """Stores the suggested limits for the query to join; they are removed with all that the run staged."""
    suggestion = {"run": run, "from_ms": 0, "to_ms": 0, "state": SUGGESTED}
    names = ("cluster", "quota_key", "user", "client_id", "matched_entity")
    staged = [
        suggestion
        | {name: row[name] for name in names}
        | {"limit": row["suggested_limit"], "bucket_user": row["user"], "bucket_client_id": row["client_id"]}
        for row in rows
    ]
    clickhouse.insert(publication.CLIENT_LIMITS, pa.Table.from_pylist(staged), token=f"{run}/{SUGGESTED}")


def _throttled(
    spark: SparkSession, clickhouse: ClickHouse, slices: Sequence[Mapping[str, Any]]
) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Per bucket (QUOTA) the clients, most seconds first, and for how many seconds under the limits that were in force
    and under the suggested one."""
    seconds = read_divided(spark, clickhouse, replay, REPLAY_SCHEMA, slices)
    member = (*QUOTA, "member_user", "member_client_id")
    at_broker = seconds.groupBy(*member, "broker_id").agg(F.sum("before_s").alias("b"), F.sum("after_s").alias("a"))
    worst = at_broker.groupBy(*member).agg(F.max("b").alias("before_s"), F.max("a").alias("after_s"))
    most = (F.greatest("before_s", "after_s").desc(), "member_user", "member_client_id")
    ranked = worst.withColumn("place", F.row_number().over(Window.partitionBy(*QUOTA).orderBy(*most)))
    rows = ranked.where(F.col("place") <= MOST_CLIENTS).orderBy(*QUOTA, "place").toArrow().to_pylist()
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        lists = found.setdefault(tuple(row[name] for name in QUOTA), {name: [] for name in _LISTS})
        values = (row["member_user"], row["member_client_id"], float(row["before_s"]), float(row["after_s"]))
        for name, value in zip(_LISTS, values, strict=True):
            lists[name].append(value)
    return found
