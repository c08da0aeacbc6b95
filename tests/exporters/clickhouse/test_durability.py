"""The store's errors for rows that a server does not accept, and what is on disk when it confirms rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from exporters.clickhouse.connection import Endpoint
from exporters.clickhouse.store import Store, TransientWriteError, UnsupportedServerError
from quota_metrics.verdict.thresholds import SCHEMA_VALUES
from tests.kit.clickhouse import QueriedStore, RunningClickHouse
from tests.kit.fake_clickhouse import VERSION, fake_clickhouse, http
from tests.kit.points import points


def stored(store: QueriedStore, cluster: str) -> int:
    return int(store.query("SELECT count() FROM headroom.points WHERE cluster = {c:String}", {"c": cluster})[0][0])


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


@pytest.mark.parametrize("version", ["24.8.14.39", "25.7.1.1", "23.3", "1.1.54390"])
def test_server_before_25_8_is_refused_at_every_call(version: str) -> None:
    refusal = rf"^ClickHouse {version} is too old: .* 25\.8 or newer$"
    with answering(1, version) as store:
        with pytest.raises(UnsupportedServerError, match=refusal):
            store.migrate(SCHEMA_VALUES)
        with pytest.raises(UnsupportedServerError, match=refusal):
            store.insert("points", points("c", 1), token="t")


@pytest.mark.parametrize("version", ["25.8.2.1", "25.10.1.1", "26.1.1.1"])
def test_newer_servers_are_accepted(version: str) -> None:
    with answering(1, version) as store:
        store.insert("points", points("c", 1), token="t")
