"""A run whose staged rows a replica does not show yet: it fails, and what was published before stays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from exporters.clickhouse.client import ClickHouse, Row
from exporters.clickhouse.connection import Endpoint
from exporters.clickhouse.errors import StoreError
from quota_metrics.levels.definition import Thresholds
from spark_jobs.clickhouse import queries, runs
from spark_jobs.time_range import TimeRange
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.recent import FRIDAY_MS

pytestmark = pytest.mark.clickhouse

WHEN = TimeRange(FRIDAY_MS, FRIDAY_MS + 120_000, 60)
CLIENTS = 100
ROWS = 2 * CLIENTS


@dataclass
class BehindOnce(ClickHouse):
    """Another replica answers the driver's questions: it shows all rows that were staged."""

    def rows(self, sql: str, parameters: Mapping[str, Any] = {}, **more: Any) -> list[Row]:
        if "quota_utilization_staging" not in sql:
            return super().rows(sql, parameters, **more)
        if "GROUP BY start_s" not in sql:
            return [{"rows": ROWS}]
        return [{"start_s": (WHEN.from_ms // 1000) + start, "rows": CLIENTS} for start in (0, 60)]


def a_run(cluster: str, version: int) -> runs.Run:
    return runs.Run(uuid4(), version, "gateway", cluster, WHEN)


def stage(clickhouse: ClickHouse, run: runs.Run, clients: int = CLIENTS) -> None:
    values: dict[str, Any] = {"cluster": run.cluster, "source": "gateway", "quota_key": "producer_byte_rate"}
    values |= {"user": "alice", "broker_id": 1, "state": "none", "usage": 1.0, "group_usage": 1.0, "elapsed_s": 60}
    rows = [
        {**values, "client_id": f"c{client}", "window_start_ms": start_ms}
        for start_ms in (WHEN.from_ms, WHEN.from_ms + 60_000)
        for client in range(clients)
    ]
    table = pa.Table.from_pylist(rows, schema=to_arrow_schema(queries.WINDOWS_SCHEMA, timezone="UTC"))
    table = table.append_column("run", pa.array([str(run.id)] * len(rows)))
    select = queries.stage_windows(WHEN, Thresholds())
    clickhouse.insert(queries.STAGING, table, token=str(run.id), select=select)


def published(clickhouse: ClickHouse, cluster: str) -> dict[str, int]:
    read = "SELECT count() AS rows, countIf(is_deleted) AS tombstones FROM quota_utilization WHERE cluster = {c:String}"
    shown = "SELECT count() AS rows FROM quota_utilization_committed WHERE cluster = {c:String}"
    (written,) = clickhouse.rows(read, {"c": cluster})
    return {**written, "committed": clickhouse.rows(shown, {"c": cluster})[0]["rows"]}


@pytest.fixture
def writer(clickhouse: RunningClickHouse, monkeypatch: pytest.MonkeyPatch) -> Endpoint:
    monkeypatch.setattr(runs, "SEEN_S", 0.2)
    monkeypatch.setattr(runs, "RETRY_S", 0.1)
    return clickhouse.writer


@pytest.mark.parametrize("seen", [0, CLIENTS // 2], ids=["none", "half"])
@pytest.mark.parametrize("kind", [ClickHouse, BehindOnce], ids=["stays-behind", "behind-in-the-statement"])
def test_replica_that_lacks_staged_rows_makes_no_tombstones(
    writer: Endpoint, kind: type[ClickHouse], seen: int
) -> None:
    """A second run of the same windows, at a replica without some of its rows."""
    cluster = f"stale-{kind.__name__}-{seen}"
    clickhouse = kind((writer,))
    first, second = a_run(cluster, 1), a_run(cluster, 2)
    stage(clickhouse, first)
    runs.publish(clickhouse, first, ROWS)
    before = {"rows": ROWS, "tombstones": 0, "committed": ROWS}
    assert published(clickhouse, cluster) == before
    stage(clickhouse, second, seen)
    reason = "shows .* of the 200 rows" if kind is ClickHouse else "a replica lacks staged rows"
    with pytest.raises(StoreError, match=reason):
        runs.publish(clickhouse, second, ROWS)
    assert published(clickhouse, cluster) == before


def test_run_with_fewer_rows_removes_what_has_no_input_any_more(writer: Endpoint) -> None:
    clickhouse = ClickHouse((writer,))
    first, second = a_run("fewer", 1), a_run("fewer", 2)
    stage(clickhouse, first)
    runs.publish(clickhouse, first, ROWS)
    stage(clickhouse, second, CLIENTS // 2)
    runs.publish(clickhouse, second, CLIENTS)
    assert published(clickhouse, "fewer") == {"rows": 2 * ROWS, "tombstones": CLIENTS, "committed": CLIENTS}
