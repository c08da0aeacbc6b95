"""Headroom and growth of each quota over weeks, and a suggested limit. Reads usage_1m, writes capacity_report.

A suggested limit comes with a what-if, by the engine of `headroom quotas what-if`: which clients of the bucket the
broker would have throttled, and for how long, over the recorded rows of quota_usage.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from exporters.clickhouse.client import ClickHouse
from exporters.model import DEFAULT_ENTITY
from quota_metrics.config.entities import CLIENT_ID, USER, QuotaAlteration, entity_of
from quota_metrics.config.kafka_configs import kafka_configs_line
from quota_metrics.config.resolution import bucket_names
from quota_metrics.simulation.outcomes import KEYS
from quota_metrics.suggestion.limits import FULL
from quota_metrics.what_if.answer import UnrecordedClusterError, WhatIfAnswer, WhatIfQuestion, answer
from quota_metrics.what_if.document import coverage_text, document
from spark_jobs import cli
from spark_jobs.arrow import collected
from spark_jobs.jobs.history import recorded_history
from spark_jobs.jobs.start import started
from spark_jobs.options import ClientOptions
from spark_jobs.reports import tables
from spark_jobs.session import parallelism
from spark_jobs.time_range import TimeRange
from spark_jobs.transforms.demand import QUOTA, demands

NAME = "capacity_report"

_OVER = 0.30  # peak utilisation below which a quota is over-provisioned


def run(options: ClientOptions) -> list[dict[str, Any]]:
    """Runs the job and returns a row per quota and bucket, highest utilisation first.

    Raises ValueError (url), JavaError, StoreError.
    """
    with started(NAME, options) as (job_run, spark, clickhouse):
        history = recorded_history(spark, clickhouse, options, job_run)
        job_run.begin("measuring each quota over its history")
        quotas = collected(demands(history)).to_pylist()
        rows = [_report_row(row, options) for row in quotas]
        rows.sort(key=lambda row: (-row["utilization_p99"], *(row[name] for name in QUOTA)))
        job_run.rows_out = len(rows)
        job_run.begin("replaying the suggested limits")
        rows = with_replay(spark, clickhouse, rows, options.when)
        if rows:
            stored = [{**row, "run_id": str(job_run.id)} for row in rows]
            table = pa.Table.from_pylist(stored, schema=tables.CAPACITY_STORED)
            clickhouse.insert("capacity_report", table, token=f"{job_run.id}/capacity")
    return options.chosen(rows)


def _report_row(row: dict[str, Any], options: ClientOptions) -> dict[str, Any]:
    fits = row["utilization_p99"] <= FULL and row["throttled_share"] == 0
    verdict = "fits" if fits else "under-provisioned"
    if fits and row["utilization_peak"] < _OVER:
        verdict = "over-provisioned"
    suggested = float(math.ceil(row["suggested_limit"])) if verdict != "fits" else row["limit"]
    moments = {"from_time": options.when.from_ms, "to_time": options.when.to_ms, "made_at": time.time_ns() // 1_000_000}
    times = {name: datetime.fromtimestamp(ms / 1000, UTC) for name, ms in moments.items()}
    after = row["throttled_after"] if verdict != "fits" else row["throttled_before"]
    reported = {**row, **times, "verdict": verdict, "suggested_limit": suggested, "throttled_after": after}
    return {**reported, "command": _command(reported)}


def _command(row: dict[str, Any]) -> str:
    """The kafka-configs command that sets the suggested limit on the matched entity, quoted for a shell."""
    entity = _entity(row)
    if row["suggested_limit"] == row["limit"] or entity is None:
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
        numbers = spark.range(0, len(asked), 1, min(len(asked), 4 * parallelism(spark.sparkContext)))
        for found in collected(numbers.mapInArrow(_asking(clickhouse, asked), _REPLAYED)).to_pylist():
            row = asked[found["number"]][0]
            of_row[id(row)] = {name: found[name] for name in _LISTS}
            if found["covers"]:
                sys.stderr.write(f"headroom: the replay of {row['matched_entity']} {found['covers']}\n")
    return [{**row, **of_row.get(id(row), nobody)} for row in rows]


def _question(row: Mapping[str, Any], when: TimeRange) -> WhatIfQuestion | None:
    """What if the limit were the suggested one; None when it is, or when usage is not recorded in bytes."""
    entity = _entity(row)
    is_same = row["suggested_limit"] == row["limit"]
    if is_same or row["source"] != "gateway" or row["quota_key"] not in KEYS or entity is None:
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
