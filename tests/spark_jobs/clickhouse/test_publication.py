"""Windows that are staged and published: a block that is sent again counts once, and a run whose staged rows a replica
does not show yet fails, so that what was published before stays."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from exporters.clickhouse.client import ClickHouse, Row
from exporters.clickhouse.connection import Endpoint
from exporters.clickhouse.errors import StoreError
from quota_metrics.verdict.thresholds import Thresholds
from quota_metrics.verdict.window import Window
from spark_jobs.clickhouse import queries, runs
from spark_jobs.clickhouse.runs import JobRun
from spark_jobs.clickhouse.worst_clients import levels, worst
from spark_jobs.options import HeadroomOptions, JobOptions
from spark_jobs.reports import headroom_report
from spark_jobs.time_range import TimeRange
from spark_jobs.transforms.verdicts import COLUMNS, Fold
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.client_windows import LIMIT, client_window
from tests.kit.usage_rows import FRIDAY_MS

pytestmark = pytest.mark.clickhouse

WHEN = TimeRange(FRIDAY_MS, FRIDAY_MS + 120_000, 60)
CLIENTS = 100
ROWS = 2 * CLIENTS
_NAMES = ("run", "cluster", "source", "quota_key", "user", "client_id", "level", "instant_level", "impact")
_TYPES: dict[str, pa.DataType] = dict.fromkeys(_NAMES, pa.string())
_TYPES |= dict.fromkeys(("window_s", "broker_id", "complete"), pa.int32())
_TYPES |= dict.fromkeys(("utilization", "throttle_ms_max"), pa.float64())
_STAGED = pa.schema({**_TYPES, "window_start": pa.timestamp("s", "UTC")})


@dataclass
class BehindOnce(ClickHouse):
    """Another replica answers the driver's questions: it shows all rows that were staged."""

    def rows(self, sql: str, parameters: Mapping[str, Any] = {}, **more: Any) -> list[Row]:
        if "quota_utilization_staging" not in sql:
            return super().rows(sql, parameters, **more)
        if "GROUP BY start_s" not in sql:
            return [{"rows": ROWS}]
        return [{"start_s": (WHEN.from_ms // 1000) + start, "rows": CLIENTS} for start in (0, 60)]


def a_run(clickhouse: ClickHouse, cluster: str, version: int) -> JobRun:
    return JobRun(clickhouse, "publication", JobOptions("", WHEN, cluster=cluster), version)


def stage_rows(clickhouse: ClickHouse, run: JobRun, rows: list[dict[str, Any]]) -> None:
    fixed = {"run": str(run.id), "cluster": run.options.cluster, "source": "gateway", "quota_key": "producer_byte_rate"}
    fixed |= {"user": "alice", "level": "ok", "instant_level": "ok", "impact": "none"}
    numbers = {"window_s": 60, "broker_id": 1, "complete": 1, "throttle_ms_max": 0.0}
    if rows:
        table = pa.Table.from_pylist([{**fixed, **numbers, **row} for row in rows], _STAGED)
        clickhouse.insert(queries.STAGING, table, token=str(run.id))


def stage(clickhouse: ClickHouse, run: JobRun, clients: int = CLIENTS) -> None:
    starts_s = (WHEN.from_ms // 1000, WHEN.from_ms // 1000 + 60)
    rows = [{"window_start": at_s, "client_id": f"c{client}"} for at_s in starts_s for client in range(clients)]
    stage_rows(clickhouse, run, rows)


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
    first, second = a_run(clickhouse, cluster, 1), a_run(clickhouse, cluster, 2)
    stage(clickhouse, first)
    first.publish(ROWS)
    before = {"rows": ROWS, "tombstones": 0, "committed": ROWS}
    assert published(clickhouse, cluster) == before
    stage(clickhouse, second, seen)
    reason = "shows .* of the 200 rows" if kind is ClickHouse else "a replica lacks staged rows"
    with pytest.raises(StoreError, match=reason):
        second.publish(ROWS)
    assert published(clickhouse, cluster) == before


def test_run_with_fewer_rows_removes_what_has_no_input_any_more(
    writer: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "INSERT_ROWS", 1)  # each window is published by an INSERT of its own
    clickhouse = ClickHouse((writer,))
    first, second = a_run(clickhouse, "fewer", 1), a_run(clickhouse, "fewer", 2)
    stage(clickhouse, first)
    first.publish(ROWS)
    stage(clickhouse, second, CLIENTS // 2)
    second.publish(CLIENTS)
    assert published(clickhouse, "fewer") == {"rows": ROWS, "tombstones": CLIENTS, "committed": CLIENTS}


def test_worst_clients_are_those_with_harm_near_the_limit_then_by_level_throttle_time_and_use(writer: Endpoint) -> None:
    clickhouse = ClickHouse((writer,))
    run = a_run(clickhouse, "worst", 1)
    throttled, last_s = {"level": "throttled"}, WHEN.from_ms // 1000 + 60
    columns: dict[str, dict[str, Any]] = {
        "loses": {"level": "warn", "impact": "losing", "utilization": 0.8},
        "lags": {**throttled, "impact": "falling-behind"},
        "waits": {"level": "warn", "impact": "delayed"},
        "harmless": {**throttled, "throttle_ms_max": 900.0, "utilization": 0.5},
        "short": {**throttled, "throttle_ms_max": 10.0, "utilization": 2.0, "impact": "unknown"},
        "a": {"level": "critical", "utilization": 0.96},
        "b": {"level": "critical", "utilization": 0.96},
        "earlier": {"utilization": 0.0},
        "elsewhere": {"utilization": 0.1, "impact": "losing"},  # not by this quota
        "free": {},
    }
    rows = [{"window_start": last_s, "client_id": name, **of} for name, of in reversed(columns.items())]
    before = {"window_start": last_s - 60, "client_id": "earlier", "throttle_ms_max": 800.0}
    stage_rows(clickhouse, run, [before, *rows])
    options = HeadroomOptions("", WHEN, cluster="worst")
    reported = worst(clickhouse, run, headroom_report.COLUMNS, options)
    assert [row["client_id"] for row in reported] == list(columns)
    few = worst(clickhouse, run, headroom_report.COLUMNS, replace(options, top=4))
    assert few == reported[:4]
    assert set(levels(clickhouse, run)) == {"throttled", "critical", "warn", "ok"}
    assert set(levels(clickhouse, run, client_id="free")) == {"ok"}  # whoever the report leaves out


def block(run: str) -> pa.Table:
    """The verdicts on two clients of whom nothing but usage is known."""
    windows = [client_window(0.9, client_id=client_id, window_start_ms=WHEN.from_ms) for client_id in ("a", "b")]
    columns: dict[str, list[Any]] = dict(zip(Window._fields, map(list, zip(*windows, strict=True)), strict=True))
    names = ("telemetry", "instance", "byte_report", "team", "observed_before")
    unknown = {name: [None, None] for name in names}
    return pa.Table.from_batches(Fold(WHEN, Thresholds(), run, {})([pa.record_batch({**columns, **unknown})]))


def test_block_that_is_sent_again_counts_once(writer: Endpoint) -> None:
    clickhouse, run = ClickHouse((writer,)), str(uuid4())
    for token in ("first", "first", "second"):
        clickhouse.insert(queries.STAGING, block(run), token=f"{run}/{token}")
    staged = "SELECT client_id, level, `limit`, complete FROM quota_utilization_staging WHERE run = {run:String}"
    rows = [tuple(row.values()) for row in clickhouse.rows(f"{staged} ORDER BY client_id", {"run": run})]
    assert rows == [(client_id, "warn", LIMIT, 1) for client_id in ("a", "a", "b", "b")]


def test_every_column_of_the_table_is_written(clickhouse: RunningClickHouse) -> None:
    names = "SELECT name FROM system.columns WHERE database = 'headroom' AND table = 'quota_utilization'"
    of_the_run = {"run_id", "run_version", "is_deleted"}
    assert {name for (name,) in clickhouse.store.query(names)} == set(COLUMNS) | of_the_run
