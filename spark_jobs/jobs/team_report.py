"""Usage, throttling and cost of each team. Reads quota_usage, whose clients owners.yaml gives to teams.

ClickHouse adds up each client's hours, without rows that were stored twice; Spark joins clients with owners. The sums
of all teams and UNOWNED are the metered bytes, exactly: bytes are added as integers.
"""

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from quota_metrics.config.owners import Owners, parse_owners
from quota_metrics.verdict.thresholds import MUTED_LOOKBACK_MS
from spark_jobs import cli
from spark_jobs.clickhouse.queries import IN_RANGE, OF_CLUSTER, schema
from spark_jobs.clickhouse.runs import started
from spark_jobs.clickhouse.source import NothingToReadError, arrow_schema, collected, read
from spark_jobs.options import TeamOptions
from spark_jobs.time_range import DAY_MS, TimeRange
from spark_jobs.transforms.demand import growth_per_week, is_whole_day, of_week_before

NAME = "team_report"

_HOUR_S = 3_600
_GB = 1e9
_CLIENT = ("user", "client_id")
_SUMS = ("bytes_in", "bytes_out", "requests", "throttled_requests", "muted_ms")

# JMX and other collectors may announce throttle times, which overlap, and not count the muted time.
HOURS = f"""
SELECT user, client_id, hour_s, toInt64(sumIf(bytes, quota_key = 'producer_byte_rate')) AS bytes_in,
       toInt64(sumIf(bytes, quota_key = 'consumer_byte_rate')) AS bytes_out, toInt64(sum(requests)) AS requests,
       toInt64(sum(throttled_requests)) AS throttled_requests, toInt64(sum(muted_ms)) AS muted_ms
FROM (
    SELECT toValidUTF8(u.user) AS user, toValidUTF8(u.client_id) AS client_id, quota_key,
           toInt64(toUnixTimestamp(toStartOfHour(ts))) AS hour_s, sum(u.bytes) AS bytes, sum(u.requests) AS requests,
           sum(u.throttled_requests) AS throttled_requests,
           sum(u.muted_ms) + intervalLengthSumIf(
               toUnixTimestamp64Milli(ts),
               toInt64(toUnixTimestamp64Milli(ts) + least(throttle_ms, {MUTED_LOOKBACK_MS})),
               u.muted_ms = 0 AND gateway_id = '' AND throttle_ms > 0
           ) AS muted_ms
    FROM quota_usage AS u FINAL
    WHERE {IN_RANGE} AND source = {{source:String}} AND {OF_CLUSTER}
      AND quota_key IN ('producer_byte_rate', 'consumer_byte_rate')
    GROUP BY user, client_id, quota_key, hour_s, cluster, broker_id
)
GROUP BY user, client_id, hour_s
"""  # noqa: S608 - made of our own words
HOURS_SCHEMA = schema(**dict.fromkeys(_CLIENT, T.StringType), **dict.fromkeys(("hour_s", *_SUMS), T.LongType))
_OWNED = schema(**dict.fromkeys((*_CLIENT, "team", "contact", "page"), T.StringType))


def run(options: TeamOptions) -> list[dict[str, Any]]:
    """Runs the job and returns a row per team, most bytes first. Raises ValueError (url, owners), OSError (owners),
    JavaError, StoreError."""
    owners = parse_owners(options.owners.read_bytes())
    with started(NAME, options) as (job_run, spark, clickhouse):
        job_run.begin("adding up the usage of each team")
        when = options.when
        source = {"source": options.source, "cluster": options.cluster}
        days = [  # a task and a query for each
            {**source, "from_ms": max(start, when.from_ms), "to_ms": min(start + DAY_MS, when.to_ms)}
            for start in range(when.from_ms - when.from_ms % DAY_MS, when.to_ms, DAY_MS)
        ]
        rows = collected(teams(read(spark, clickhouse, HOURS, HOURS_SCHEMA, days), owners, when)).to_pylist()
        if not rows:
            raise NothingToReadError("no usage was recorded in this time")
        if options.source == "jmx":
            sys.stderr.write("headroom: brokers expose no bytes and requests by JMX: these, shares and costs are 0\n")
        job_run.rows_out = len(rows)
    length_s, prices, capacity = (when.to_ms - when.from_ms) / 1000, owners.prices, owners.capacity
    rates = (("bytes_in", capacity.in_bytes_per_s), ("bytes_out", capacity.out_bytes_per_s))
    for row in rows:
        carried = [row[name] / (rate * length_s) for name, rate in rates if rate]
        row["capacity_share"] = max(carried, default=None)  # of the direction that takes the larger one
        row["cost"] = float(row["bytes_in"] * prices.in_per_gb + row["bytes_out"] * prices.out_per_gb) / _GB
    return rows


def teams(hours: DataFrame, owners: Owners, when: TimeRange) -> DataFrame:
    """Per team: bytes, throttling, share of all bytes, the busiest hour, growth per week by the days that lie wholly in
    the range. Input: HOURS_SCHEMA."""
    # Read once for sums, peaks and growth.
    of_client = hours.groupBy(*_CLIENT, "hour_s").agg(*(F.sum(name).alias(name) for name in _SUMS)).cache()

    def owned(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = [{**row, **owners.owner(row["user"], row["client_id"])._asdict()} for row in batch.to_pylist()]
            yield from pa.Table.from_pylist(rows, arrow_schema(_OWNED)).to_batches()

    of_owner = of_client.select(*_CLIENT).distinct().mapInArrow(owned, _OWNED)
    nbytes = F.expr("bytes_in + bytes_out")
    of_team = of_client.join(F.broadcast(of_owner), on=list(_CLIENT)).withColumn("bytes", nbytes)
    by_hour = of_team.groupBy("team", "hour_s").agg(F.sum("bytes").alias("bytes"))
    peaks = by_hour.groupBy("team").agg((F.max("bytes") / _HOUR_S).alias("peak_bytes_per_s"))
    of_day = F.sum("bytes").cast("double").alias("of_day")
    by_day = by_hour.groupBy("team", F.expr("hour_s div 86400").alias("day")).agg(of_day).where(is_whole_day(when))
    by_day = by_day.withColumn("week_before", of_week_before("team"))
    growth = by_day.groupBy("team").agg(growth_per_week().alias("growth_per_week"))
    sums = of_team.groupBy("team").agg(
        F.first("contact").alias("contact"),
        F.first("page").alias("page"),
        F.count_distinct(*_CLIENT).alias("clients"),
        *(F.sum(name).alias(name) for name in _SUMS[:-1]),
        (F.sum("muted_ms") / 1000).alias("throttled_s"),
    )
    share = F.coalesce(F.try_divide(nbytes, F.sum(nbytes).over(Window.partitionBy())), F.lit(0.0))
    joined = sums.withColumn("share", share).join(peaks, on="team").join(growth, on="team", how="left")
    return joined.orderBy(nbytes.desc(), "team")


if __name__ == "__main__":
    cli.main("team-report")
