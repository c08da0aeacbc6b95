"""Inventory of clients: instances, versions with known issues, silent clients, clients without telemetry, their cost.

Reads client_instances, series, quota_usage and client_software; writes job_runs only.
"""

import sys
from typing import Any

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_jobs import cli
from spark_jobs.clickhouse.queries import IN_RANGE, OF_CLUSTER, schema
from spark_jobs.clickhouse.runs import started
from spark_jobs.clickhouse.source import NothingToReadError, collected, read
from spark_jobs.options import ClientOptions

NAME = "client_inventory"

SILENT_AFTER_MS = 900_000  # three times the longest push interval

_CLIENT = ("cluster", "user", "client_id")
_STATUSES = ("known issue", "silent", "no telemetry", "gone", "reports")  # those with problems first


def run(options: ClientOptions) -> list[dict[str, Any]]:
    """Runs the job and returns a row per client, those with problems first. Raises ValueError, JavaError,
    StoreError."""
    with started(NAME, options) as (job_run, spark, clickhouse):
        job_run.begin("joining instances, series and traffic of each client")
        span = {"from_ms": options.when.from_ms, "to_ms": options.when.to_ms}
        bounds = [{**span, "cluster": options.cluster, "source": options.source}]
        clients = inventory(
            read(spark, clickhouse, INSTANCES, INSTANCES_SCHEMA, bounds),
            read(spark, clickhouse, SERIES, SERIES_SCHEMA, bounds),
            read(spark, clickhouse, TRAFFIC, TRAFFIC_SCHEMA, bounds),
            read(spark, clickhouse, ISSUES, ISSUES_SCHEMA, bounds),
            now_ms=options.when.to_ms,
        ).cache()
        counts = {row["status"]: row["count"] for row in clients.groupBy("status").count().collect()}
        if not counts:
            raise NothingToReadError("no client was seen in this time")
        job_run.rows_out = sum(counts.values())
        job_run.stats.update({status: float(counts.get(status, 0)) for status in _STATUSES})
        job_run.begin("sorting clients, those with problems first")
        for name, chosen in (("user", options.user), ("client_id", options.client_id)):
            if chosen:
                clients = clients.where(F.col(name) == chosen)
        places = ", ".join(f"'{status}'" for status in _STATUSES)
        place = F.expr(f"array_position(array({places}), status)")  # the function takes no column before Spark 4
        in_order = clients.orderBy(place, F.col("series").desc(), *_CLIENT)
        rows = collected(in_order.limit(options.most)).to_pylist()
    if not options.top and len(rows) == options.most:
        sys.stderr.write(f"headroom: these are the first {len(rows)} clients; --top shows more\n")
    return rows


def inventory(instances: DataFrame, series: DataFrame, traffic: DataFrame, issues: DataFrame, now_ms: int) -> DataFrame:
    """One row per client with telemetry or traffic, from rows of the schemas below. `status`: `known issue`: its
    software has one; `silent`: it has pushed and still has traffic, but no longer pushes; `no telemetry`: it has
    traffic and never pushed; `gone`: neither recently; `reports`: none of these."""
    issue = F.array_join(F.array_sort(F.collect_set(F.when(F.col("known_issue") != "", F.col("known_issue")))), "; ")
    software = F.concat_ws(" ", "software_name", "software_version")
    with_issues = instances.join(F.broadcast(issues), on=["cluster", "software_name", "software_version"], how="left")
    seen = with_issues.groupBy(*_CLIENT).agg(
        F.count("*").cast("int").alias("instances"),
        F.sum((F.col("terminated") == 0).cast("int")).cast("int").alias("instances_open"),
        F.array_join(F.array_sort(F.collect_set(software)), ", ").alias("software"),
        issue.alias("known_issue"),
        F.max("last_seen_ms").alias("last_push_ms"),
        F.sum("pushes").alias("pushes"),
        F.sum("points").alias("points"),
    )
    joined = seen.join(series, on=list(_CLIENT), how="full").join(traffic, on=list(_CLIENT), how="full")
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

INSTANCES = f"""
SELECT cluster, toValidUTF8(i.principal) AS user, toValidUTF8(i.client_id) AS client_id,
       argMax(toValidUTF8(i.software_name), i.last_seen) AS software_name,
       argMax(toValidUTF8(i.software_version), i.last_seen) AS software_version,
       toUnixTimestamp64Milli(max(i.last_seen)) AS last_seen_ms, toInt64(max(i.terminated)) AS terminated,
       toInt64(sum(i.pushes)) AS pushes, toInt64(sum(i.points)) AS points
FROM client_instances AS i
WHERE {OF_CLUSTER}
GROUP BY cluster, user, client_id, i.client_instance_id
HAVING last_seen_ms >= {{from_ms:Int64}} AND min(i.first_seen) < fromUnixTimestamp64Milli({{to_ms:Int64}})
"""  # noqa: S608 - made of our own words
INSTANCES_SCHEMA = schema(
    **dict.fromkeys((*_CLIENT, "software_name", "software_version"), T.StringType),
    **dict.fromkeys(("last_seen_ms", "terminated", "pushes", "points"), T.LongType),
)

# Cardinality: the number of a client's series, and the metric with the most series.
SERIES = f"""
SELECT cluster, user, client_id, toInt64(sum(number)) AS series, argMax(metric, number) AS costliest_metric
FROM (
    SELECT cluster, toValidUTF8(s.principal) AS user, toValidUTF8(s.client_id) AS client_id, metric,
           uniqExact(series_id) AS number
    FROM series AS s
    WHERE {OF_CLUSTER} AND last_seen >= fromUnixTimestamp64Milli({{from_ms:Int64}})
    GROUP BY cluster, user, client_id, metric
)
GROUP BY cluster, user, client_id
"""  # noqa: S608 - made of our own words
SERIES_SCHEMA = schema(**dict.fromkeys(_CLIENT, T.StringType), series=T.LongType, costliest_metric=T.StringType)

TRAFFIC = f"""
SELECT cluster, toValidUTF8(u.user) AS user, toValidUTF8(u.client_id) AS client_id,
       toUnixTimestamp64Milli(max(ts)) AS last_traffic_ms
FROM quota_usage AS u
WHERE {OF_CLUSTER} AND source = {{source:String}} AND {IN_RANGE}
GROUP BY cluster, user, client_id
"""  # noqa: S608 - made of our own words
TRAFFIC_SCHEMA = schema(**dict.fromkeys(_CLIENT, T.StringType), last_traffic_ms=T.LongType)

ISSUES = f"""
SELECT cluster, toValidUTF8(software_name) AS software_name, toValidUTF8(software_version) AS software_version,
       any(known_issue) AS known_issue
FROM client_software
WHERE {OF_CLUSTER}
GROUP BY cluster, software_name, software_version
"""  # noqa: S608 - made of our own words
ISSUES_SCHEMA = schema(**dict.fromkeys(("cluster", "software_name", "software_version", "known_issue"), T.StringType))


if __name__ == "__main__":
    cli.main("client-inventory")
