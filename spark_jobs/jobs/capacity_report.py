"""Headroom and growth of each quota over weeks, and a suggested limit. Reads usage_1m, writes capacity_report.

A suggested limit comes with a what-if, by the engine of `headroom quotas what-if`: which clients of the bucket the
broker would have throttled, and for how long, over the recorded rows of quota_usage.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from exporters.clickhouse.client import ClickHouse
from exporters.model import DEFAULT_ENTITY
from quota_metrics.config.entities import CLIENT_ID, USER, QuotaAlteration, entity_of
from quota_metrics.config.kafka_configs import kafka_configs_line
from quota_metrics.config.resolution import bucket_names
from quota_metrics.simulation.outcomes import KEYS
from quota_metrics.what_if.answer import UnrecordedClusterError, WhatIfAnswer, WhatIfQuestion, answer
from quota_metrics.what_if.document import coverage_text, document
from spark_jobs import cli
from spark_jobs.clickhouse import runs
from spark_jobs.clickhouse.runs import JobRun
from spark_jobs.clickhouse.source import clickhouse_of, source_errors
from spark_jobs.jobs.history import prepared, read_history
from spark_jobs.options import ClientOptions
from spark_jobs.reports import tables
from spark_jobs.session import progress, session
from spark_jobs.time_range import TimeRange

NAME = "capacity_report"

_QUOTA = ("cluster", "source", "quota_key", "user", "client_id")
_BUCKET = (*_QUOTA, "broker_id")
_STEPS_OF_DAY = 288
_FEWEST_DAYS = 7  # less history gives no growth figure
_TARGET = 0.80  # share of a suggested limit that the 99th percentile of five-minute usage takes
_STEP_MS = 300_000.0
_MOST_MUTED = 0.9  # share of five minutes: beyond it too little was sent to say at what rate
USAGE, MUTED_SHARE = "usage", "usage / (1 - muted share)"
UNKNOWN_DEMAND = "unknown: muted for nearly all of the time, usage is a lower bound"
_UNDER, _OVER = 0.95, 0.30  # utilisation above _UNDER: under-provisioned; below _OVER: over-provisioned


def run(options: ClientOptions) -> list[dict[str, Any]]:
    """Runs the job and returns a row per quota and bucket, highest utilisation first.

    Raises ValueError (url), JavaError, StoreError.
    """
    clickhouse = clickhouse_of(options.url, options.password)
    job_run = JobRun.of(clickhouse, NAME, options)
    with (
        job_run,
        source_errors(),
        session(NAME, options.master) as spark,
        progress(NAME, spark.sparkContext),
    ):
        slices = prepared(spark, clickhouse, options, job_run)
        job_run.begin("measuring each quota over its history")
        quotas = capacity(read_history(spark, clickhouse, slices)).toArrow().to_pylist()
        rows = [_report_row(row, options) for row in quotas]
        rows.sort(key=lambda row: (-row["utilization_p99"], *(row[name] for name in _QUOTA)))
        job_run.rows_out = len(rows)
        job_run.begin("replaying the suggested limits")
        rows = with_replay(spark, clickhouse, rows, options.when)
        if rows:
            stored = [{**row, "run_id": str(job_run.id)} for row in rows]
            table = pa.Table.from_pylist(stored, schema=tables.CAPACITY_STORED)
            clickhouse.insert("capacity_report", table, token=f"{job_run.id}/capacity")
        runs.clear(clickhouse, runs.Run(job_run.id, job_run.version, "", "", options.when))
    return options.chosen(rows)


def capacity(history: DataFrame) -> DataFrame:
    """Per quota and bucket, on its busiest broker: utilisation, growth, the share of time at the limit, what the
    clients wanted, and the limit of which the 99th percentile of what they wanted in five minutes is 80 %.

    Usage under throttling is a lower bound of demand. While the broker reads them, clients send at usage / (1 - muted
    share): that is the upper bound, because a backlog is sent in it as well. Without a bound (muted for nearly all of
    the time) the demand is unknown, and the suggested limit goes by usage. Input: rows with the columns of
    HISTORY_SCHEMA."""
    newest = F.max_by(F.struct("limit", "matched_entity"), "step")
    used = F.col("p95") * F.col("limit")  # usage is counted whichever limit was in force
    current = history.withColumn("used", used).withColumn("newest", newest.over(Window.partitionBy(*_BUCKET)))
    now, day = F.try_divide("used", "newest.limit"), F.expr(f"step div {_STEPS_OF_DAY}")
    muted = F.least(F.col("muted_ms") / _STEP_MS, F.lit(1.0))
    sent_unmuted = F.greatest("used", F.col("mean") * F.col("limit") / (1 - F.col("muted")))
    wanted = F.when(F.col("muted") <= _MOST_MUTED, sent_unmuted)
    judged = current.withColumns({"now": now, "day": day, "muted": muted}).withColumn("wanted", wanted)
    daily = judged.groupBy(*_BUCKET, "day").agg(F.percentile("now", 0.95).alias("day_p95"))
    growth = daily.groupBy(*_BUCKET).agg(
        F.when(F.count("*") >= _FEWEST_DAYS, F.try_divide(F.regr_slope("day_p95", "day") * 7, F.avg("day_p95"))).alias(
            "growth_per_week"
        )
    )
    is_known = F.count("wanted") >= 0.99 * F.count("*")
    demand = F.percentile(F.coalesce("wanted", "used"), 0.99)
    suggested = F.greatest(F.when(is_known, demand).otherwise(F.percentile("used", 0.99)) / _TARGET, F.lit(1.0))
    brokers = judged.groupBy(*_BUCKET).agg(
        F.first("newest").alias("newest"),
        F.avg(F.try_divide(F.col("mean") * F.col("limit"), "newest.limit")).alias("utilization_mean"),
        F.percentile("now", 0.95).alias("utilization_p95"),
        F.percentile("now", 0.99).alias("utilization_p99"),
        F.max("now").alias("utilization_peak"),
        F.avg((F.col("muted_ms") > 0).cast("double")).alias("throttled_share"),
        F.avg((F.col("now") > 1).cast("double")).alias("throttled_before"),
        F.percentile("used", 0.99).alias("demand_low"),
        F.when(is_known, demand).alias("demand_high"),
        F.when(F.max("muted") <= 0, F.lit(USAGE))
        .when(is_known, F.lit(MUTED_SHARE))
        .otherwise(F.lit(UNKNOWN_DEMAND))
        .alias("demand_source"),
        suggested.alias("suggested_limit"),
        F.collect_list(F.coalesce("wanted", "used")).alias("all_wanted"),
    )
    above = F.size(F.filter("all_wanted", lambda wanted: wanted > F.col("suggested_limit"))) / F.size("all_wanted")
    after = F.when(F.col("demand_high").isNotNull(), above)
    both = brokers.withColumn("throttled_after", after).join(growth, on=list(_BUCKET), how="left")
    busiest = Window.partitionBy(*_QUOTA).orderBy(F.col("utilization_p99").desc(), "broker_id")
    worst = both.withColumn("place", F.row_number().over(busiest)).where(F.col("place") == 1)
    return worst.select(
        *_BUCKET,
        F.col("newest.limit").alias("limit"),
        F.col("newest.matched_entity").alias("matched_entity"),
        *("utilization_mean", "utilization_p95", "utilization_p99", "utilization_peak", "growth_per_week"),
        *("throttled_share", "throttled_before", "throttled_after", "suggested_limit"),
        *("demand_low", "demand_high", "demand_source"),
    )


def _report_row(row: dict[str, Any], options: ClientOptions) -> dict[str, Any]:
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
    entity = _entity(row)
    if row["verdict"] == "fits" or entity is None:
        return ""
    return kafka_configs_line(entity, row["quota_key"], row["suggested_limit"])


def _entity(row: Mapping[str, Any]) -> list[tuple[str, str | None]] | None:
    """The matched entity; None when it is no client's."""
    parts = (part.partition("=") for part in row["matched_entity"].split(", "))
    entity = [(kind, None if name == DEFAULT_ENTITY else name) for kind, _, name in parts]
    return entity if all(kind in (USER, CLIENT_ID) for kind, _ in entity) else None


MOST_CLIENTS = 20  # of a bucket, the longest throttled
_MOST_QUESTIONS = 200  # the fullest quotas; each may take seconds
_LISTS = ("replay_users", "replay_client_ids", "replay_before_s", "replay_after_s")
_REPLAYED = (
    "number int, covers string, replay_users array<string>, replay_client_ids array<string>,"
    " replay_before_s array<double>, replay_after_s array<double>"
)
_NAMES, _SECONDS = pa.list_(pa.string()), pa.list_(pa.float64())
_REPLAYED_TYPES: dict[str, pa.DataType] = {
    "number": pa.int32(),
    "covers": pa.string(),
    **dict(zip(_LISTS, (_NAMES, _NAMES, _SECONDS, _SECONDS), strict=True)),
}
_REPLAYED_COLUMNS = pa.schema(_REPLAYED_TYPES)


def with_replay(
    spark: SparkSession, clickhouse: ClickHouse, rows: list[dict[str, Any]], when: TimeRange
) -> list[dict[str, Any]]:
    """Rows of the report with the clients of the bucket that the suggested limit would have throttled, by the one
    what-if engine (quota_metrics.what_if). Spark distributes the questions. Raises StoreError."""
    questions = [(row, question) for row in rows if (question := _question(row, when)) is not None]
    asked, left = questions[:_MOST_QUESTIONS], len(questions[_MOST_QUESTIONS:])
    if left:
        sys.stderr.write(f"headroom: the limits of {left} more quotas were not replayed\n")
    nobody: dict[str, Any] = {name: [] for name in _LISTS}
    of_row: dict[int, dict[str, Any]] = {}
    if asked:
        numbers = spark.range(0, len(asked), 1, min(len(asked), 4 * spark.sparkContext.defaultParallelism))
        for found in numbers.mapInArrow(_asking(clickhouse, asked), _REPLAYED).toArrow().to_pylist():
            row = asked[found["number"]][0]
            of_row[id(row)] = {name: found[name] for name in _LISTS}
            if found["covers"]:
                sys.stderr.write(f"headroom: the replay of {row['matched_entity']} {found['covers']}\n")
    return [{**row, **of_row.get(id(row), nobody)} for row in rows]


def _question(row: Mapping[str, Any], when: TimeRange) -> WhatIfQuestion | None:
    """What if the limit were the suggested one; None when it is, or when usage is not recorded in bytes."""
    entity = _entity(row)
    if row["verdict"] == "fits" or row["source"] != "gateway" or row["quota_key"] not in KEYS or entity is None:
        return None
    alteration = QuotaAlteration(entity_of(dict(entity)), {row["quota_key"]: row["suggested_limit"]})
    bucket = (row["user"], row["client_id"])
    return WhatIfQuestion([alteration], when.from_ms, when.to_ms, row["cluster"], bucket=bucket)


def _asking(
    clickhouse: ClickHouse, asked: Sequence[tuple[Mapping[str, Any], WhatIfQuestion]]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def answers(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in (int(number.as_py()) for batch in batches for number in batch.column(0)):
            row, question = asked[number]
            try:
                replayed = _throttled(answer(question, clickhouse, time.time_ns() // 1_000_000), row)
            except UnrecordedClusterError as exc:
                replayed = {"covers": f"covers nothing: {exc}"} | {name: [] for name in _LISTS}
            yield from pa.Table.from_pylist([{"number": number, **replayed}], _REPLAYED_COLUMNS).to_batches()

    return answers


def _throttled(found: WhatIfAnswer, row: Mapping[str, Any]) -> dict[str, Any]:
    """Of the bucket's clients, each at its worst broker, those that were or would have been throttled."""
    worst: dict[tuple[str, str], tuple[float, float]] = {}
    for outcome in found.outcomes:
        rule, names = outcome.after.rule, (outcome.client.user, outcome.client.client_id)
        seconds = (outcome.before.throttled_ms / 1000, outcome.after.throttled_ms / 1000)
        if rule is not None and bucket_names(rule) == (row["user"], row["client_id"]) and any(seconds):
            worst[names] = max(worst.get(names, (0.0, 0.0)), seconds, key=max)
    longest = sorted(worst.items(), key=lambda each: (-max(each[1]), each[0]))[:MOST_CLIENTS]
    complete = found.covers.clients == found.covers.of_clients
    return {
        "covers": "" if complete else coverage_text(document(found, 0)["covers"]),
        "replay_users": [user for (user, _), _ in longest],
        "replay_client_ids": [client_id for (_, client_id), _ in longest],
        "replay_before_s": [before for _, (before, _) in longest],
        "replay_after_s": [after for _, (_, after) in longest],
    }


if __name__ == "__main__":
    cli.main("capacity-report")
