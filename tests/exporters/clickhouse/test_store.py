"""What a store keeps and joins, its errors for rows that a server does not accept, and what is on disk when it confirms
rows."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from exporters.clickhouse.connection import Endpoint
from exporters.clickhouse.errors import StoreError
from exporters.clickhouse.store import PermanentWriteError, Store, TooLargeWriteError, TransientWriteError, WriteError
from quota_metrics.verdict.thresholds import SCHEMA_VALUES
from tests.kit.clickhouse import QueriedStore, RunningClickHouse, running_clickhouse
from tests.kit.fake_clickhouse import VERSION, fake_clickhouse, http
from tests.kit.points import INSTANCE, NOW_MS, TIME, points


def stored(store: QueriedStore, cluster: str) -> int:
    return int(store.query("SELECT count() FROM headroom.points WHERE cluster = {c:String}", {"c": cluster})[0][0])


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
    assert stored(clickhouse.store, "once") == 20


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
    assert stored(store, "bad") == 0


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
    with pytest.raises(StoreError):
        store.rows("SELECT 1 AS one")
    store.close()


@pytest.mark.clickhouse
@pytest.mark.parametrize(
    ("setting", "value", "code"),
    [("min_free_disk_bytes_to_perform_insert", 1 << 60, 243), ("parts_to_throw_insert", 1, 252)],
)
def test_full_server_raises_transient_error_and_stores_nothing(
    clickhouse: RunningClickHouse, setting: str, value: int, code: int
) -> None:
    store, cluster = clickhouse.store, f"full-{code}"
    store.insert("points", points("one-part", 1), token=f"a-part-{code}")
    store.query(f"ALTER TABLE headroom.points MODIFY SETTING {setting} = {value}")
    try:
        with pytest.raises(TransientWriteError) as refused:
            store.insert("points", points(cluster, 10), token=cluster)
    finally:
        store.query(f"ALTER TABLE headroom.points RESET SETTING {setting}")
    assert refused.value.code == code
    assert stored(store, cluster) == 0
    for _ in range(2):  # the same batch again, and once more
        store.insert("points", points(cluster, 10), token=cluster)
    assert stored(store, cluster) == 10


@pytest.mark.clickhouse
def test_holds_requires_all_rows(clickhouse: RunningClickHouse) -> None:
    store, rows = clickhouse.store, points("held", 2_000)
    assert not store.holds("points", rows)
    store.insert("points", rows.slice(0, 1_000), token="held")
    assert store.holds("points", rows.slice(0, 1_000))
    assert store.holds("points", rows.slice(10, 1))
    assert not store.holds("points", rows)
    assert not store.holds("quota_usage", rows)


@pytest.mark.clickhouse
def test_part_is_fsynced_before_the_insert_is_confirmed(clickhouse: RunningClickHouse) -> None:
    sql = "SELECT sumIf(value, event = 'FileSync'), sumIf(value, event = 'DirectorySync') FROM system.events"
    before = clickhouse.store.query(sql)[0]
    clickhouse.store.insert("points", points("synced", 10), token="synced")
    after = clickhouse.store.query(sql)[0]
    assert all(later > earlier for earlier, later in zip(before, after, strict=True))


@pytest.mark.clickhouse
def test_all_written_tables_use_fsync(clickhouse: RunningClickHouse) -> None:
    rows = clickhouse.store.query(
        "SELECT name FROM system.tables WHERE database = 'headroom'"
        " AND create_table_query LIKE '%fsync_after_insert = 1%'"
        " AND create_table_query LIKE '%fsync_part_directory = 1%'"
    )
    written = {"points", "series", "client_histograms", "pushes", "client_instances", "quota_limits", "quota_usage"}
    assert written <= {name for (name,) in rows}


@contextmanager
def answering(written_rows: int, version: str = VERSION) -> Iterator[Store]:
    """A store whose server confirms so many rows of every insert."""
    with fake_clickhouse(http(b"", written_rows=written_rows), version) as fake:
        yield Store(Endpoint.parse(fake.url))


def test_unconfirmed_rows_raise_transient_error() -> None:
    with answering(3) as store:
        store.insert("points", points("c", 3), token="t")
    with answering(6) as store:
        store.insert("points", points("c", 3), token="t")  # with those of a view of the operator
    with answering(2) as store, pytest.raises(TransientWriteError, match="confirmed 2 of"):
        store.insert("points", points("c", 3), token="t")


@pytest.mark.parametrize(
    ("limit", "kind"),
    [
        ("(total) memory limit exceeded", TransientWriteError),
        ("Query memory limit exceeded", TooLargeWriteError),
        ("User memory limit exceeded", TooLargeWriteError),
        ("Memory limit (for user) exceeded", TooLargeWriteError),
    ],
)
def test_rows_for_whose_memory_the_user_has_too_little_are_too_many(limit: str, kind: type[WriteError]) -> None:
    refusal = http(f"Code: 241. DB::Exception: {limit}: would use 1.00 GiB".encode(), "500 Internal Server Error")
    with fake_clickhouse(refusal) as fake, pytest.raises(TransientWriteError, match=r"241.*limit") as refused:
        Store(Endpoint.parse(fake.url)).insert("points", points("c", 3), token="t")
    assert type(refused.value) is kind


@pytest.mark.parametrize("version", ["24.8.14.39", "25.7.1.1", "23.3", "1.1.54390"])
def test_server_before_25_8_is_refused_at_every_call(version: str) -> None:
    refusal = rf"^ClickHouse {version} is too old: .* 25\.8 or newer$"
    with answering(1, version) as store:
        with pytest.raises(TransientWriteError, match=refusal):
            store.migrate(SCHEMA_VALUES)
        with pytest.raises(TransientWriteError, match=refusal):
            store.insert("points", points("c", 1), token="t")


@pytest.mark.parametrize("version", ["25.8.2.1", "25.10.1.1", "26.1.1.1"])
def test_newer_servers_are_accepted(version: str) -> None:
    with answering(1, version) as store:
        store.insert("points", points("c", 1), token="t")
