"""Windows that are staged: a block that is sent again counts once."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from quota_metrics.verdict.thresholds import Thresholds
from quota_metrics.verdict.window import Window
from spark_jobs.clickhouse import queries
from spark_jobs.clickhouse.source import clickhouse_of
from spark_jobs.time_range import TimeRange
from spark_jobs.transforms.verdicts import COLUMNS, Fold
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.client_windows import LIMIT, client_window

pytestmark = pytest.mark.clickhouse

WHEN = TimeRange(1_795_168_800_000, 1_795_168_860_000, 60)


def block(run: str) -> pa.Table:
    """The verdicts on two clients of whom nothing but usage is known."""
    windows = [client_window(0.9, client_id=client_id, window_start_ms=WHEN.from_ms) for client_id in ("a", "b")]
    columns: dict[str, list[Any]] = dict(zip(Window._fields, map(list, zip(*windows, strict=True)), strict=True))
    names = ("telemetry", "instances", "byte_reports", "team", "observed_before")
    unknown = {name: [None, None] for name in names}
    return pa.Table.from_batches(Fold(WHEN, Thresholds(), run, {})([pa.record_batch({**columns, **unknown})]))


def test_block_that_is_sent_again_counts_once(clickhouse: RunningClickHouse) -> None:
    writer, run = clickhouse_of(clickhouse.url), str(uuid4())
    for token in ("first", "first", "second"):
        writer.insert(queries.STAGING, block(run), token=f"{run}/{token}")
    staged = "SELECT client_id, level, `limit`, complete FROM quota_utilization_staging WHERE run = {run:String}"
    rows = [tuple(row.values()) for row in writer.rows(f"{staged} ORDER BY client_id", {"run": run})]
    assert rows == [(client_id, "warn", LIMIT, 1) for client_id in ("a", "a", "b", "b")]


def test_every_column_of_the_table_is_written(clickhouse: RunningClickHouse) -> None:
    names = "SELECT name FROM system.columns WHERE database = 'headroom' AND table = 'quota_utilization'"
    of_the_run = {"run_id", "run_version", "is_deleted"}
    assert {name for (name,) in clickhouse.store.query(names)} == set(COLUMNS) | of_the_run
