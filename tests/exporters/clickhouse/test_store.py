from __future__ import annotations

import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from exporters.clickhouse.store import PermanentWriteError, QueryError, Store, TransientWriteError
from tests.kit.engine_process import EngineProcess, engine_process

NOW_MS = 4_102_444_800_000  # the year 2100: the tables forget what is older than two weeks
TIME = pa.timestamp("ms", "UTC")
INSTANCE = uuid.UUID("00010203-0405-0607-0809-0a0b0c0d0e0f")


def points(cluster: str, count: int, **replaced: Any) -> pa.Table:
    """`count` points, one millisecond apart, of one series."""
    columns: dict[str, Any] = {
        "cluster": pa.array([cluster] * count).dictionary_encode(),
        "metric": pa.array(["m"] * count).dictionary_encode(),
        "ts": pa.array(range(NOW_MS, NOW_MS + count), TIME),
        "principal": ["ANONYMOUS"] * count,
        "client_id": ["app"] * count,
        "client_instance_id": pa.array([INSTANCE.bytes] * count, pa.binary(16)).dictionary_encode(),
        "series_id": pa.array([2**64 - 1] * count, pa.uint64()),
        "value": [float(n) for n in range(count)],
        "int_value": pa.array([None] * count, pa.int64()),
        "flags": pa.array([0] * count, pa.uint8()),
        "interval_ms": pa.array([5000] * count, pa.uint32()),
        "received_at": pa.array([NOW_MS] * count, TIME),
    }
    return pa.table({**columns, **replaced})


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


def _insert_and_count(store: Store, cluster: str, tokens: list[str]) -> int:
    for token in tokens:
        store.insert("points", points(cluster, 10), token=token)
    found = store.query("SELECT count() FROM headroom.points WHERE cluster = {c:String}", {"c": cluster})
    return int(found[0][0])


@pytest.mark.chdb
def test_the_same_token_counts_once(engine: EngineProcess) -> None:
    assert engine.run(_insert_and_count, "once", ["a", "a", "a"]) == 10
    assert engine.run(_insert_and_count, "once", ["b", "a", "b"]) == 20


def _insert_over_http(store: Store, url: str, cluster: str) -> int:
    server = Store.server(url, "")
    for _ in range(2):
        server.insert("points", points(cluster, 10), token="http")
    server.close()
    return _insert_and_count(store, cluster, ["http"])


@pytest.mark.chdb
def test_a_server_is_written_to_in_the_same_way(engine: EngineProcess) -> None:
    assert engine.run(_insert_over_http, engine.url, "over-http") == 10


@pytest.mark.chdb
def test_the_schema_applies_over_http(engine: EngineProcess) -> None:
    server = Store.server(f"{engine.url}/headroom", "")
    server.migrate()
    assert server.query("SELECT count() > 2 FROM headroom.schema_migrations") == [(True,)]
    server.close()


def _point_with_its_series(store: Store) -> list[Any]:
    store.insert("points", points("view", 1), token="view")
    store.insert("series", series("view", "10.0.0.1", NOW_MS), token="view")
    store.insert("series", series("view", "10.0.0.2", NOW_MS + 1), token="view-again")
    return list(
        store.query(
            "SELECT toString(client_instance_id), value, isNull(int_value), toString(kind), toString(temporality),"
            " monotonic, attributes, resource, source_address, broker_id, interval_ms, toUnixTimestamp64Milli(ts)"
            " FROM headroom.client_metrics WHERE cluster = 'view'"
        )
    )


@pytest.mark.chdb
def test_the_view_joins_a_point_with_its_newest_series_row(engine: EngineProcess) -> None:
    row = (str(INSTANCE), 0.0, 1, "sum", "cumulative", True, {"node_id": "3"}, {}, "10.0.0.2", -1, 5000, NOW_MS)
    assert engine.run(_point_with_its_series) == [row]


def _instances(store: Store) -> list[Any]:
    for token, seen_ms, terminated in (("1", NOW_MS, 0), ("2", NOW_MS + 5, 1), ("2", NOW_MS + 5, 1)):
        rows = {
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
    return list(
        store.query(
            "SELECT toUnixTimestamp64Milli(first_seen), toUnixTimestamp64Milli(last_seen), terminated, pushes, points"
            " FROM headroom.client_instances FINAL WHERE cluster = 'added-up'"
        )
    )


@pytest.mark.chdb
def test_rows_of_a_client_instance_add_up(engine: EngineProcess) -> None:
    assert engine.run(_instances) == [(NOW_MS, NOW_MS + 5, 1, 2, 20)]


def _failures(store: Store) -> dict[str, str]:
    wrong = {
        "no such column": ("points", points("bad", 1).append_column("colour", pa.array(["red"]))),
        "wrong type": ("points", points("bad", 1, ts=pa.array(["soon"]))),
        "no such value": ("series", series("bad", "", NOW_MS).set_column(3, "kind", pa.array(["gouge"]))),
        "no such table": ("pints", points("bad", 1)),
    }
    found = {}
    for name, (table, rows) in wrong.items():
        try:
            store.insert(table, rows, token=name)
        except (TransientWriteError, PermanentWriteError) as exc:
            found[name] = type(exc).__name__
    return found


@pytest.mark.chdb
def test_rows_that_can_never_be_written_are_told_from_others(engine: EngineProcess) -> None:
    assert engine.run(_failures) == {
        "no such column": "PermanentWriteError",
        "wrong type": "PermanentWriteError",
        "no such value": "PermanentWriteError",
        "no such table": "TransientWriteError",  # an operator can mend it
    }
    assert engine.run(_insert_and_count, "bad", []) == 0


def _fail_then_ask(store: Store) -> tuple[str, Any]:
    try:
        store.query("SELECT number, throwIf(number = 900000) FROM numbers(1000000) SETTINGS max_block_size = 1000")
    except QueryError as exc:
        return str(exc), store.query("SELECT 42")
    return "it did not fail", None


@pytest.mark.chdb
def test_a_failed_query_leaves_nothing_to_the_next_one(engine: EngineProcess) -> None:
    # chDB 4.4: on the same handle `SELECT 42` would begin with megabytes of the failed result.
    message, answer = engine.run(_fail_then_ask)
    assert message.startswith("Code: 395. DB::Exception: ")
    assert answer == [(42,)]


def _stale(store: Store) -> tuple[bool, bytes]:
    assert store.engine is not None
    with store.engine.handle() as handle:
        try:
            handle.query("SELECT number, throwIf(number = 900000) FROM numbers(1000000) SETTINGS max_block_size = 1000")
        except Exception as exc:  # noqa: BLE001 the kind does not matter here
            failed = "395" in str(exc)
    with store.engine.handle() as handle:
        return failed, bytes(handle.query("SELECT 42").bytes())


@pytest.mark.chdb
def test_a_handle_of_its_own_is_clean(engine: EngineProcess) -> None:
    assert engine.run(_stale) == (True, b"42\n")


def _in_utc(store: Store) -> Any:
    return store.query("SELECT timezone(), toUnixTimestamp(toDateTime('2026-01-01 00:00:00'))")


@pytest.mark.chdb
def test_times_without_a_zone_are_utc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    monkeypatch.chdir(tmp_path)
    # The engine would take this one, and fail over it.
    (tmp_path / "config.xml").write_text("<clickhouse><users_config>/nowhere</users_config></clickhouse>")
    with engine_process(tmp_path / "a b% ü") as engine:
        assert engine.run(_in_utc) == [("UTC", 1_767_225_600)]


@pytest.mark.chdb
def test_a_directory_in_use_is_refused(engine: EngineProcess, tmp_path: Path) -> None:
    directory = engine.run(_directory)
    with pytest.raises(OSError, match="is another process using it"):
        _open_elsewhere(directory)


@pytest.mark.parametrize("name", ["a?b", "a&b", "a\\b"])
def test_a_directory_that_the_engine_would_misread_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError, match="cannot keep ClickHouse"):
        Store.embedded(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def _directory(store: Store) -> str:
    assert store.engine is not None
    return str(store.engine.directory)


def _open_elsewhere(directory: str) -> None:
    code = (
        "import sys, pathlib; from exporters.clickhouse.store import Store; Store.embedded(pathlib.Path(sys.argv[1]))"
    )
    done = subprocess.run([sys.executable, "-c", code, directory], capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise OSError(done.stderr)


_WRITER = """
import sys
from pathlib import Path
from exporters.clickhouse.store import Store
from tests.exporters.clickhouse.test_store import points
store = Store.embedded(Path(sys.argv[1]))
store.migrate()
for number in range(int(sys.argv[2]), 10_000):
    print("begin", number, flush=True)
    store.insert("points", points(f"batch-{number}", 5000), token=f"batch-{number}")
    print("end", number, flush=True)
"""


def _counts_after_replay(store: Store, last_begun: int) -> dict[str, int]:
    number = f"batch-{last_begun}"
    store.insert("points", points(number, 5000), token=number)  # nobody said that it was written
    rows = store.query("SELECT cluster, count() FROM headroom.points WHERE cluster LIKE 'batch-%' GROUP BY cluster")
    return {str(cluster): int(count) for cluster, count in rows}


@pytest.mark.chdb
def test_kill_9_loses_nothing_and_a_replay_doubles_nothing(tmp_path: Path) -> None:
    begun = -1
    for pause_s in (0.05, 0.11):
        command = [sys.executable, "-c", _WRITER, str(tmp_path), str(begun + 1)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            first = writer.stdout.readline()
            time.sleep(pause_s)  # the moment of the kill, anywhere in some batch
            writer.send_signal(signal.SIGKILL)
            lines = [first, *writer.stdout.read().splitlines()]
        begun = max(int(line.split()[1]) for line in lines if line.startswith("begin"))
        with engine_process(tmp_path) as engine:
            counts = engine.run(_counts_after_replay, begun)
        assert counts == {f"batch-{number}": 5000 for number in range(begun + 1)}


def test_a_server_that_is_away_is_worth_another_try() -> None:
    store = Store.server("http://127.0.0.1:1/headroom", "")
    with pytest.raises(TransientWriteError, match="cannot write 1 rows to headroom"):
        store.insert("points", points("away", 1), token="t")
    with pytest.raises(TransientWriteError):
        store.migrate()
    with pytest.raises(QueryError):
        store.query("SELECT 1")
    store.close()


@pytest.mark.parametrize(
    "url", ["", "clickhouse:9000", "http://", "ftp://h/headroom", "http://h:1/other", "http://h:x"]
)
def test_an_url_that_is_none(url: str) -> None:
    with pytest.raises(ValueError):
        Store.server(url, "")
