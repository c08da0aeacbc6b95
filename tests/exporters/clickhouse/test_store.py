from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from exporters.clickhouse.connection import Endpoint
from exporters.clickhouse.store import PermanentWriteError, QueryError, TransientWriteError
from quota_metrics.verdict.thresholds import SCHEMA_VALUES
from tests.kit.clickhouse import QueriedStore, RunningClickHouse, running_clickhouse
from tests.kit.points import INSTANCE, NOW_MS, TIME, points


def series(cluster: str, address: str, last_seen_ms: int) -> pa.Table:
    return pa.table(
        {
            "series_id": pa.array([2**64 - 1], pa.uint64()),
            "cluster": [cluster],
            "metric": ["m"],
            "kind": pa.array(["sum"]).dictionary_encode(),
            "temporality": ["cumulative"],
            "monotonic": [True],
            "attributes": pa.array([[("node_id", "3")]], pa.map_(pa.string(), pa.string())),
            "software_name": ["apache-kafka-java"],
            "source_address": [address],
            "last_seen": pa.array([last_seen_ms], TIME),
        }
    )


@pytest.mark.clickhouse
def test_same_token_counts_once(clickhouse: RunningClickHouse) -> None:
    for token in ("a", "a", "b", "a", "b"):
        clickhouse.store.insert("points", points("once", 10), token=token)
    assert clickhouse.store.query("SELECT count() FROM headroom.points WHERE cluster = 'once'") == [(20,)]


@pytest.mark.clickhouse
def test_view_joins_a_point_with_its_newest_series_row(clickhouse: RunningClickHouse) -> None:
    store = clickhouse.store
    store.insert("points", points("view", 1), token="view")
    store.insert("series", series("view", "10.0.0.1", NOW_MS), token="view")
    store.insert("series", series("view", "10.0.0.2", NOW_MS + 1), token="view-again")
    rows = store.query(
        "SELECT toString(client_instance_id), value, isNull(int_value), toString(kind), toString(temporality),"
        " monotonic, attributes, resource, source_address, broker_id, interval_ms, toUnixTimestamp64Milli(ts)"
        " FROM headroom.client_metrics WHERE cluster = 'view'"
    )
    assert rows == [
        (str(INSTANCE), 0.0, 1, "sum", "cumulative", True, {"node_id": "3"}, {}, "10.0.0.2", -1, 5000, NOW_MS)
    ]


@pytest.mark.clickhouse
def test_client_instance_rows_are_aggregated(clickhouse: RunningClickHouse) -> None:
    store = clickhouse.store
    for token, seen_ms, terminated in (("1", NOW_MS, 0), ("2", NOW_MS + 5, 1), ("2", NOW_MS + 5, 1)):
        rows: dict[str, Any] = {
            "cluster": ["added-up"],
            "client_instance_id": pa.array([INSTANCE.bytes], pa.binary(16)),
            "client_id": ["app"],
            "first_seen": pa.array([seen_ms], TIME),
            "last_seen": pa.array([seen_ms], TIME),
            "terminated": pa.array([terminated], pa.uint8()),
            "pushes": pa.array([1], pa.uint64()),
            "points": pa.array([10], pa.uint64()),
        }
        store.insert("client_instances", pa.table(rows), token=f"instance-{token}")
    rows_added_up = store.query(
        "SELECT toUnixTimestamp64Milli(first_seen), toUnixTimestamp64Milli(last_seen), terminated, pushes, points"
        " FROM headroom.client_instances FINAL WHERE cluster = 'added-up'"
    )
    assert rows_added_up == [(NOW_MS, NOW_MS + 5, 1, 2, 20)]


@pytest.mark.clickhouse
def test_permanent_and_transient_failures_are_distinguished(clickhouse: RunningClickHouse) -> None:
    store = clickhouse.store
    wrong = {
        "no such column": ("points", points("bad", 1).append_column("colour", pa.array(["red"]))),
        "wrong type": ("points", points("bad", 1, ts=pa.array(["soon"]))),
        "no such value": ("series", series("bad", "", NOW_MS).set_column(3, "kind", pa.array(["gouge"]))),
        "no such table": ("pints", points("bad", 1)),
    }
    errors = {}
    for name, (table, rows) in wrong.items():
        try:
            store.insert(table, rows, token=name)
        except (TransientWriteError, PermanentWriteError) as exc:
            errors[name] = type(exc).__name__
    assert errors == {
        "no such column": "TransientWriteError",  # a migration fixes it
        "wrong type": "PermanentWriteError",
        "no such value": "PermanentWriteError",
        "no such table": "TransientWriteError",  # an operator can fix it
    }
    assert store.query("SELECT count() FROM headroom.points WHERE cluster = 'bad'") == [(0,)]


@pytest.mark.clickhouse
def test_times_without_a_zone_are_utc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    with running_clickhouse(tmp_path / "a b% ü&<") as clickhouse:
        asked = "SELECT timezone(), toUnixTimestamp(toDateTime('2026-01-01 00:00:00'))"
        assert clickhouse.store.query(asked) == [("UTC", 1_767_225_600)]


def test_unreachable_server_raises_transient_error() -> None:
    store = QueriedStore(Endpoint.parse("http://127.0.0.1:1/headroom"))
    with pytest.raises(TransientWriteError, match="cannot write 1 rows to headroom"):
        store.insert("points", points("away", 1), token="t")
    with pytest.raises(TransientWriteError):
        store.migrate(SCHEMA_VALUES)
    with pytest.raises(QueryError):
        store.rows("SELECT 1 AS one")
    store.close()
