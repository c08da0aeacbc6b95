"""Headroom and growth of each quota over weeks, and a suggested limit.

Reads usage_1m, writes capacity_report.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from exporters.kafka_configs import kafka_configs_line
from exporters.model import DEFAULT_ENTITY
from spark_jobs import cli
from spark_jobs.clickhouse import publication
from spark_jobs.clickhouse.client import ClickHouse
from spark_jobs.clickhouse.errors import source_errors
from spark_jobs.job_runs import JobRun
from spark_jobs.jobs.capacity_replay import with_replay
from spark_jobs.jobs.history import prepared, read_history
from spark_jobs.options import Options
from spark_jobs.progress import progress
from spark_jobs.reports import capacity_table
from spark_jobs.session import session

NAME = "capacity_report"

_QUOTA = ("cluster", "source", "quota_key", "user", "client_id")
_BUCKET = (*_QUOTA, "broker_id")
_STEPS_OF_DAY = 288
_FEWEST_DAYS = 7  # less history gives no growth figure
_TARGET = 0.80  # share of a suggested limit that the 99th percentile of five-minute usage takes
_UNDER, _OVER = 0.95, 0.30  # utilisation above _UNDER: under-provisioned; below _OVER: over-provisioned


def run(options: Options) -> list[dict[str, Any]]:
    """Runs the job and returns a row per quota and bucket, highest utilisation first.

    Raises ValueError (url), JavaError, SourceError.
    """
    clickhouse = ClickHouse(options.url, options.password)
    job_run = JobRun(clickhouse, NAME, version=time.time_ns(), when=options.when, source=options.source)
    with (
        job_run,
        source_errors(),
        session(NAME, options.master) as spark,
        progress(NAME, spark.sparkContext),
    ):
        slices = prepared(spark, clickhouse, options, job_run)
        found = capacity(read_history(spark, clickhouse, slices))
        rows = [_report_row(row, options) for row in found.toArrow().to_pylist()]
        rows.sort(key=lambda row: (-row["utilization_p99"], *(row[name] for name in _QUOTA)))
        job_run.rows_out = len(rows)
        rows = with_replay(spark, clickhouse, rows, slices)
        if rows:
            stored = [{**row, "run_id": str(job_run.id)} for row in rows]
            table = pa.Table.from_pylist(stored, schema=capacity_table.STORED)
            clickhouse.insert("capacity_report", table, token=f"{job_run.id}/capacity")
        publication.clear(clickhouse, publication.Run(job_run.id, job_run.version, "", "", options.when))
    return options.chosen(rows)


def capacity(history: DataFrame) -> DataFrame:
    """Per quota and bucket, on its busiest broker: utilisation, growth, the share of time at the limit, and the limit
    of which the 99th percentile of five-minute usage is 80 %. Input: rows with the columns of HISTORY_SCHEMA."""
    newest = F.max_by(F.struct("limit", "matched_entity"), "step")
    used = F.col("p95") * F.col("limit")  # usage is counted whichever limit was in force
    current = history.withColumn("used", used).withColumn("newest", newest.over(Window.partitionBy(*_BUCKET)))
    now, day = F.try_divide("used", "newest.limit"), F.expr(f"step div {_STEPS_OF_DAY}")
    judged = current.withColumns({"now": now, "day": day})
    daily = judged.groupBy(*_BUCKET, "day").agg(F.percentile("now", 0.95).alias("day_p95"))
    growth = daily.groupBy(*_BUCKET).agg(
        F.when(F.count("*") >= _FEWEST_DAYS, F.try_divide(F.regr_slope("day_p95", "day") * 7, F.avg("day_p95"))).alias(
            "growth_per_week"
        )
    )
    suggested = F.greatest(F.percentile("used", 0.99) / _TARGET, F.lit(1.0))
    brokers = judged.groupBy(*_BUCKET).agg(
        F.first("newest").alias("newest"),
        F.avg(F.try_divide(F.col("mean") * F.col("limit"), "newest.limit")).alias("utilization_mean"),
        F.percentile("now", 0.95).alias("utilization_p95"),
        F.percentile("now", 0.99).alias("utilization_p99"),
        F.max("now").alias("utilization_peak"),
        F.avg((F.col("muted_ms") > 0).cast("double")).alias("throttled_share"),
        F.avg((F.col("now") > 1).cast("double")).alias("throttled_before"),
        suggested.alias("suggested_limit"),
        F.sort_array(F.collect_list("used")).alias("all_used"),
    )
    after = F.size(F.filter("all_used", lambda used: used > F.col("suggested_limit"))) / F.size("all_used")
    both = brokers.withColumn("throttled_after", after).join(growth, on=list(_BUCKET), how="left")
    busiest = Window.partitionBy(*_QUOTA).orderBy(F.col("utilization_p99").desc(), "broker_id")
    worst = both.withColumn("place", F.row_number().over(busiest)).where(F.col("place") == 1)
    return worst.select(
        *_BUCKET,
        F.col("newest.limit").alias("limit"),
        F.col("newest.matched_entity").alias("matched_entity"),
        *("utilization_mean", "utilization_p95", "utilization_p99", "utilization_peak", "growth_per_week"),
        *("throttled_share", "throttled_before", "throttled_after", "suggested_limit"),
    )


def _report_row(row: dict[str, Any], options: Options) -> dict[str, Any]:
    fits = row["utilization_p99"] <= _UNDER and row["throttled_share"] == 0
    verdict = "fits" if fits else "under-provisioned"
    if fits and row["utilization_peak"] < _OVER:
        verdict = "over-provisioned"
    suggested = float(round(row["suggested_limit"])) if verdict != "fits" else row["limit"]
    moments = {"from_time": options.when.from_ms, "to_time": options.when.to_ms, "made_at": time.time_ns() // 1_000_000}
    times = {name: datetime.fromtimestamp(ms / 1000, UTC) for name, ms in moments.items()}
    after = row["throttled_after"] if verdict != "fits" else row["throttled_before"]
    reported = {**row, **times, "verdict": verdict, "suggested_limit": suggested, "throttled_after": after}
    return {**reported, "command": _command(reported)}


def _command(row: dict[str, Any]) -> str:
    """The kafka-configs command that sets the suggested limit on the matched entity, quoted for a shell."""
    if row["verdict"] == "fits":
        return ""
    parts = (part.partition("=") for part in row["matched_entity"].split(", "))
    entity = [(kind, None if name == DEFAULT_ENTITY else name) for kind, _, name in parts]
    if any(kind not in ("user", "client-id") for kind, _ in entity):
        return ""
    return kafka_configs_line(entity, row["quota_key"], row["suggested_limit"])


if __name__ == "__main__":
    cli.main("capacity-report", run)
