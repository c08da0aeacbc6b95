"""Inventory of clients: instances, versions with known issues, silent clients, clients without telemetry, their cost.

Reads client_instances, pushes, points_1h, quota_usage and client_software; writes job_runs only.
"""

from __future__ import annotations

import sys
import time
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from spark_jobs import cli
from spark_jobs.clickhouse import inventory_queries as queries
from spark_jobs.clickhouse.client import ClickHouse
from spark_jobs.clickhouse.errors import NothingToReadError, source_errors
from spark_jobs.clickhouse.source import read
from spark_jobs.job_runs import JobRun
from spark_jobs.options import Options
from spark_jobs.progress import progress
from spark_jobs.session import session

NAME = "client_inventory"

SILENT_AFTER_MS = 900_000  # three times the longest push interval

_CLIENT = ("cluster", "user", "client_id")


def run(options: Options) -> list[dict[str, Any]]:
    """Runs the job and returns a row per client, those with problems first. Raises ValueError, JavaError,
    SourceError."""
    clickhouse = ClickHouse(options.url, options.password)
    job_run = JobRun(clickhouse, NAME, version=time.time_ns(), when=options.when, source=options.source)
    with (
        job_run,
        source_errors(),
        session(NAME, options.master) as spark,
        progress(NAME, spark.sparkContext),
    ):
        clients = inventory(_inputs(spark, clickhouse, options), options.when.to_ms).cache()
        counts = {row["status"]: row["count"] for row in clients.groupBy("status").count().collect()}
        if not counts:
            raise NothingToReadError("no client was seen in this time")
        job_run.rows_out = sum(counts.values())
        job_run.stats.update({status: float(counts.get(status, 0)) for status in _PLACES})
        found = worst_first(clients.where(_chosen(options))).limit(options.most).toArrow().to_pylist()
    if not options.top and len(found) == options.most:
        sys.stderr.write(f"headroom: these are the first {len(found)} clients; --top shows more\n")
    return found


def _chosen(options: Options) -> Column:
    of_user = F.col("user") == options.user if options.user else F.lit(True)
    return of_user & (F.col("client_id") == options.client_id) if options.client_id else of_user


class Inputs(NamedTuple):
    """Input rows from ClickHouse, with the schemas of `inventory_queries`."""

    instances: DataFrame
    series: DataFrame
    traffic: DataFrame
    issues: DataFrame


def worst_first(clients: DataFrame) -> DataFrame:
    """Clients with problems first, then those with most series."""
    place = F.array_position(F.array(*map(F.lit, _PLACES)), F.col("status"))
    return clients.orderBy(place, F.col("series").desc(), *_CLIENT)


_PLACES = ("known issue", "silent", "no telemetry", "gone", "reports")


def inventory(inputs: Inputs, now_ms: int) -> DataFrame:
    """One row per client with telemetry or traffic. `status`: `known issue`: its software has one; `silent`: it has
    pushed and still has traffic, but no longer pushes; `no telemetry`: it has traffic and never pushed; `gone`: neither
    recently; `reports`: none of these."""
    issue = F.array_join(F.array_sort(F.collect_set(F.when(F.col("known_issue") != "", F.col("known_issue")))), "; ")
    software = F.concat_ws(" ", "software_name", "software_version")
    known = inputs.instances.join(
        F.broadcast(inputs.issues), on=["cluster", "software_name", "software_version"], how="left"
    )
    seen = known.groupBy(*_CLIENT).agg(
        F.count("*").cast("int").alias("instances"),
        F.sum((F.col("terminated") == 0).cast("int")).cast("int").alias("instances_open"),
        F.array_join(F.array_sort(F.collect_set(software)), ", ").alias("software"),
        issue.alias("known_issue"),
        F.max("last_seen_ms").alias("last_push_ms"),
        F.sum("pushes").alias("pushes"),
        F.sum("points").alias("points"),
    )
    joined = seen.join(inputs.series, on=list(_CLIENT), how="full").join(inputs.traffic, on=list(_CLIENT), how="full")
    numbers = ["instances", "instances_open", "pushes", "points", "series"]
    filled = joined.fillna(0, numbers).fillna("", ["software", "known_issue", "costliest_metric"])
    fresh_ms = now_ms - SILENT_AFTER_MS
    active = F.coalesce(F.col("last_traffic_ms") >= fresh_ms, F.lit(False))
    pushing = F.coalesce(F.col("last_push_ms") >= fresh_ms, F.lit(False))
    status = (
        F.when((F.col("known_issue") != "") & (pushing | active), "known issue")
        .when(pushing, "reports")
        .when(active & F.col("last_push_ms").isNull(), "no telemetry")
        .when(active, "silent")
        .otherwise("gone")
    )
    share = F.try_divide("points", F.sum("points").over(Window.partitionBy("cluster")))
    reported = filled.withColumns({"status": status, "share_of_points": F.coalesce(share, F.lit(0.0))})
    moments = {name: F.timestamp_millis(f"{name}_ms") for name in ("last_push", "last_traffic")}
    return reported.withColumns(moments).select(*_CLIENT, *_REPORTED)


_REPORTED = (
    *("status", "instances", "instances_open", "software", "known_issue", "last_push", "last_traffic", "pushes"),
    *("points", "share_of_points", "series", "costliest_metric"),
)


def _inputs(spark: SparkSession, clickhouse: ClickHouse, options: Options) -> Inputs:
    bounds = {"from_ms": options.when.from_ms, "to_ms": options.when.to_ms, "cluster": options.cluster}
    bounds["source"] = options.source
    return Inputs(
        *(
            read(spark, clickhouse, query, schema, [bounds])
            for query, schema in (
                (queries.INSTANCES, queries.INSTANCES_SCHEMA),
                (queries.SERIES, queries.SERIES_SCHEMA),
                (queries.TRAFFIC, queries.TRAFFIC_SCHEMA),
                (queries.ISSUES, queries.ISSUES_SCHEMA),
            )
        )
    )


if __name__ == "__main__":
    cli.main("client-inventory", run)
