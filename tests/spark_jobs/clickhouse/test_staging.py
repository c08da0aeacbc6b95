"""Windows that are staged: once per token, with words of what Spark left out."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from exporters.clickhouse.client import ClickHouse
from quota_metrics.levels.definition import Thresholds
from spark_jobs.clickhouse import queries
from spark_jobs.clickhouse.source import clickhouse_of
from spark_jobs.time_range import TimeRange
from tests.kit.clickhouse import RunningClickHouse

pytestmark = pytest.mark.clickhouse

WHEN = TimeRange(1_795_168_800_000, 1_795_168_860_000, 60)
GIVEN: dict[str, Any] = {
    "cluster": "c",
    "source": "gateway",
    "quota_key": "producer_byte_rate",
    "window_start_ms": WHEN.from_ms,
    "user": "alice",
    "broker_id": 1,
    "state": "limited",
    "matched_entity": "user=alice",
    "limit": 1000.0,
    "rule_limit": 1000.0,
    "usage": 900.0,
    "group_usage": 900.0,
    "utilization": 0.9,
    "utilization_p95": 0.9,
    "value": 0.9,
    "held": 2,
    "throttle_ms": 0.0,
    "muted_ms": 0.0,
    "elapsed_s": 60,
}


def windows(run: str, **more: Any) -> pa.Table:
    """Windows of two clients. What is not given is null."""
    rows = [{**GIVEN, **more, "client_id": client_id} for client_id in ("a", "b")]
    schema = to_arrow_schema(queries.WINDOWS_SCHEMA, timezone="UTC")
    return pa.Table.from_pylist(rows, schema=schema).append_column("run", pa.array([run] * len(rows)))


def staged(clickhouse: ClickHouse, run: str, names: str) -> list[tuple[Any, ...]]:
    asked = f"SELECT {names} FROM quota_utilization_staging WHERE run = {{run:String}} ORDER BY client_id"
    return [tuple(row.values()) for row in clickhouse.rows(asked, {"run": run})]


def test_block_that_is_sent_again_counts_once(clickhouse: RunningClickHouse) -> None:
    writer, run = clickhouse_of(clickhouse.url), str(uuid4())
    select = queries.stage_windows(WHEN, Thresholds())
    for token in ("first", "first", "second"):
        writer.insert(queries.STAGING, windows(run), token=f"{run}/{token}", select=select)
    assert staged(writer, run, "client_id") == [("a",), ("a",), ("b",), ("b",)]


def test_words_follow_from_the_window_and_from_its_last_onset(clickhouse: RunningClickHouse) -> None:
    writer, run = clickhouse_of(clickhouse.url), str(uuid4())
    onset = {
        "onset_onset_kind": "limit",
        "onset_start_ms": WHEN.from_ms - 60_000,
        "onset_limit": 1000.0,
        "onset_base_limit": 2_500_000.0,
    }
    felt = {"queue_time_ms": 2500.0, "records_failed": 0.0}
    writer.insert(
        queries.STAGING,
        windows(run, **onset, **felt),
        token=run,
        select=queries.stage_windows(WHEN, Thresholds()),
    )
    words = "level, reason, impact, impact_reason, cause, busiest_instance, software_name, complete"
    assert set(staged(writer, run, words)) == {
        (
            "warn",
            "at 90.0 % of producer_byte_rate 1.0 kB/s of user=alice, 100 B/s headroom on broker 1",
            "delayed",
            "records waited 2.5 s in the producer",
            "limit lowered from 2.5 MB/s to 1.0 kB/s at 09:59 UTC",
            "",
            "",
            1,
        )
    }
