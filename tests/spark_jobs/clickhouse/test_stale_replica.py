"""A run whose staged rows a replica does not show yet: it fails, and what was published before stays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from exporters.clickhouse.client import ClickHouse, Row
from exporters.clickhouse.connection import Endpoint
from exporters.clickhouse.errors import StoreError
from spark_jobs.clickhouse import queries, runs
from spark_jobs.time_range import TimeRange
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.usage_rows import FRIDAY_MS

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
    starts_s = (WHEN.from_ms // 1000, WHEN.from_ms // 1000 + 60)
    rows = [(at_s, f"c{client}") for at_s in starts_s for client in range(clients)]
    columns: dict[str, list[Any]] = {
        "window_start": [at_s for at_s, _ in rows],
        "client_id": [client_id for _, client_id in rows],
    }
    fixed = {"run": str(run.id), "cluster": run.cluster, "source": "gateway", "quota_key": "producer_byte_rate"}
    fixed |= {"user": "alice", "level": "ok", "instant_level": "ok"}
    table = pa.table({**columns, **{name: [value] * len(rows) for name, value in fixed.items()}})
    numbers = {"window_s": 60, "broker_id": 1, "complete": 1}
    for name, value in numbers.items():
        table = table.append_column(name, pa.array([value] * len(rows), pa.int32()))
    start = pa.array(columns["window_start"], pa.timestamp("s", "UTC"))
    if rows:
        table = table.set_column(table.column_names.index("window_start"), "window_start", start)
        clickhouse.insert(queries.STAGING, table, token=str(run.id))


def published(clickhouse: ClickHouse, cluster: str) -> dict[str, int]:
    read = (  # whether its parts are merged or not
        "SELECT uniqExact(window_start, client_id) AS rows, countIf(is_deleted) AS tombstones FROM quota_utilization"
        " WHERE cluster = {c:String}"
    )
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
    assert published(clickhouse, "fewer") == {"rows": ROWS, "tombstones": CLIENTS, "committed": CLIENTS}
