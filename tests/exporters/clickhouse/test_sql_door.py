"""What clickhouse-connect's ordinary HTTP client, and plain HTTP, get from the door."""

from __future__ import annotations

import contextlib
import datetime
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import clickhouse_connect
import pyarrow as pa
import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError, StreamFailureError

from exporters.clickhouse.sql_door import SqlDoor
from exporters.clickhouse.store import Store
from tests.kit.engine_process import EngineProcess

pytestmark = pytest.mark.chdb

FAILS_LATE = (
    "SELECT number, throwIf(number = 900000) FROM numbers(1000000) SETTINGS max_block_size = 1000, max_threads = 1"
)
NEVER_ENDS = "SELECT count() FROM numbers(1000000000000) WHERE sipHash64(number) = 1"


def ask(engine: EngineProcess, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes, Any]:
    connection = http.client.HTTPConnection(engine.host, engine.port, timeout=60)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, named)
    response = connection.getresponse()
    found = response.status, response.read(), response.headers
    connection.close()
    return found


def table(client: Client, columns: str = "a UInt32, b String") -> str:
    client.command(
        f"CREATE TABLE t ({columns}) ENGINE = MergeTree ORDER BY a SETTINGS non_replicated_deduplication_window = 100"
    )
    return "t"


def test_rows_and_types(client: Client) -> None:
    result = client.query(
        "SELECT 1 AS n, 'ü\\t' AS s, [1, 2], map('k', 'v'), toUUID('00010203-0405-0607-0809-0a0b0c0d0e0f') AS u,"
        " toDateTime64('2026-01-01 00:00:00.123', 3) AS t, NULL AS x"
    )
    moment = datetime.datetime(2026, 1, 1, 0, 0, 0, 123_000)
    row = result.result_rows[0]
    assert row[:4] == (1, "ü\t", [1, 2], {"k": "v"})
    assert (str(row[4]), row[5], row[6]) == ("00010203-0405-0607-0809-0a0b0c0d0e0f", moment, None)


def test_large_results_in_every_way(client: Client) -> None:
    rows = 300_000
    sql = f"SELECT number, toString(number) AS s FROM numbers({rows})"
    assert len(client.query(sql).result_rows) == rows
    with client.query_row_block_stream(sql) as blocks:
        assert sum(len(block) for block in blocks) == rows
    whole = client.query_arrow(sql)
    with client.query_arrow_stream(sql) as batches:
        streamed = pa.Table.from_batches(list(batches))
    assert whole.num_rows == rows
    assert streamed.sort_by("number").column("number").equals(whole.sort_by("number").column("number"))


def test_results_without_rows(client: Client) -> None:
    nothing = "SELECT number FROM numbers(10) WHERE number > 10"
    assert client.query(nothing).result_rows == []
    assert client.query_arrow(nothing).num_rows == 0
    with client.query_arrow_stream(nothing) as batches:
        assert sum(batch.num_rows for batch in batches) == 0
    assert client.query("SELECT 1 AS a, now() AS b LIMIT 0").column_names == ("a", "b")
    assert client.command("SELECT name FROM system.tables WHERE name = 'x'") == ""


def test_parameters(client: Client, engine: EngineProcess) -> None:
    text = "it's\t\n\\ü"
    sql = "SELECT {s:String}, {l:Array(Int32)}"
    assert client.query(sql, {"s": text, "l": [1, 2]}).result_rows == [(text, [1, 2])]
    assert client.query("SELECT %(s)s", {"s": text}).result_rows == [(text,)]
    form = clickhouse_connect.get_client(host=engine.host, port=engine.port, form_encode_query_params=True)
    assert form.query(sql, {"s": text, "l": [1, 2]}).result_rows == [(text, [1, 2])]
    assert client.query("SELECT length({s:String})", {"s": "x" * 50_000}).result_rows == [(50_000,)]


@pytest.mark.parametrize("compression", [False, "lz4", "zstd", "gzip"])
def test_inserts(client: Client, engine: EngineProcess, compression: Any) -> None:
    name = table(client)
    writer = clickhouse_connect.get_client(
        host=engine.host, port=engine.port, database=client.database, compress=compression
    )
    rows = [[n, f"row {n}"] for n in range(40_000)]
    assert writer.insert(name, rows, column_names=["a", "b"]).written_rows == len(rows)
    arrow = pa.table({"a": pa.array([1, 2], pa.uint32()), "b": pa.array(["x", "y"]).dictionary_encode()})
    assert writer.insert_arrow(name, arrow).written_rows == 2
    assert writer.raw_insert(name, ["a", "b"], b'3,"x"\n', fmt="CSV").written_rows == 1
    writer.command("INSERT INTO t VALUES (4, 'a;b'), (5, concat('c', 'd'))")
    writer.command("INSERT INTO t FORMAT CSV", data="6,z")
    writer.command("INSERT INTO t SELECT number, 's' FROM numbers(10)")
    assert writer.command("SELECT count() FROM t") == len(rows) + 2 + 1 + 2 + 1 + 10


def test_settings_of_a_request_do_not_leak(client: Client) -> None:
    name = table(client)
    token = {"insert_deduplication_token": "t", "async_insert": 0}
    for text in ("once", "twice"):
        client.insert(name, [[1, text]], column_names=["a", "b"], settings=token)
    # With the token still set, these two would be taken for the rows above, and dropped in silence.
    for text in ("without", "a token"):
        client.insert(name, [[2, text]], column_names=["a", "b"])
    assert client.query("SELECT a, count() FROM t GROUP BY a ORDER BY a").result_rows == [(1, 1), (2, 2)]
    assert client.query("SELECT getSetting('max_threads')", settings={"max_threads": 7}).result_rows == [(7,)]
    assert client.query("SELECT getSetting('max_threads')").result_rows != [(7,)]


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("SELEC 1", 62),
        ("SELECT (1", 62),
        ("SELECT 1; SELECT 2", 62),
        ("SELECT * FROM nowhere", 60),
        ("SELECT x", 47),
        ("SELECT 1 SETTINGS nosuch = 1", 115),
        ("SELECT * FROM file('/etc/passwd', 'LineAsString')", 497),
        ("SELECT * FROM default.`/etc/passwd`", 497),
        ("SELECT file('/etc/passwd')", 497),
        ("SELECT * FROM url('http://127.0.0.1:1/', 'LineAsString')", 497),
        ("CREATE TABLE f (a String) ENGINE = File(TSV)", 497),
        ("INSERT INTO FUNCTION file('x.tsv') SELECT 1", 497),
        ("CREATE DICTIONARY d (a UInt64) PRIMARY KEY a SOURCE(NULL()) LAYOUT(FLAT()) LIFETIME(0)", 497),
        ("BACKUP DATABASE headroom TO File('/tmp/x')", 497),
        ("SYSTEM SHUTDOWN", 497),
        ("SYSTEM KILL", 497),
        ("CREATE USER u", 497),
        ("SELECT 1 INTO OUTFILE 'x'", 497),
        ("SELECT * FROM Python(x)", 497),
    ],
)  # fmt: skip
def test_errors_carry_clickhouse_codes(client: Client, sql: str, code: int) -> None:
    with pytest.raises(DatabaseError) as failed:
        client.command(sql)
    assert failed.value.code == code
    assert "sql-door" not in str(failed.value)  # what we make of a query is not the client's business


def test_an_error_in_the_middle_of_a_stream(client: Client) -> None:
    with client.query_row_block_stream(FAILS_LATE) as blocks, pytest.raises(StreamFailureError) as failed:
        for _ in blocks:
            pass
    assert "throwIf" in str(failed.value)
    assert client.command("SELECT 42") == 42


def test_a_whole_result_says_its_error_in_the_status(client: Client) -> None:
    with pytest.raises(DatabaseError) as failed:
        client.query(FAILS_LATE)
    assert failed.value.code == 395
    assert client.command("SELECT 42") == 42


def test_a_stream_that_fails_ends_without_an_end(engine: EngineProcess) -> None:
    with pytest.raises(http.client.IncompleteRead) as cut:
        ask(engine, "POST", "/", FAILS_LATE.encode())
    assert b"__exception__" in cut.value.partial


def test_a_bad_row_is_named(client: Client) -> None:
    name = table(client)
    with pytest.raises(DatabaseError) as failed:
        client.raw_insert(name, ["a", "b"], b'1,"x"\nz,"y"\n', fmt="CSV")
    assert failed.value.code == 27
    assert client.command("SELECT count() FROM t") == 0


def test_the_time_of_a_query_is_bounded(client: Client) -> None:
    with pytest.raises(DatabaseError) as failed:
        client.query(NEVER_ENDS, settings={"max_execution_time": 1})
    assert failed.value.code == 159
    assert client.query("SELECT getSetting('max_execution_time')").result_rows == [(60,)]


def test_many_clients(engine: EngineProcess) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with clickhouse_connect.get_client(host=engine.host, port=engine.port) as own:
                assert [own.command(f"SELECT {number}") for _ in range(5)] == [number] * 5
        except BaseException as exc:  # noqa: BLE001 told to the test
            failures.append(exc)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(10)]  # more than may run at a time
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_plain_http(engine: EngineProcess) -> None:
    assert ask(engine, "GET", "/?query=SELECT+1")[:2] == (200, b"1\n")
    assert ask(engine, "POST", "/", b"SELECT 1, 'a'")[1] == b"1\ta\n"
    assert ask(engine, "POST", "/?query=SELECT+1+", b"+ 1")[1] == b"2\n"
    assert ask(engine, "GET", "/ping")[:2] == (200, b"Ok.\n")
    assert ask(engine, "GET", "/")[:2] == (200, b"Ok.\n")
    assert ask(engine, "GET", "/nowhere?query=SELECT+1")[0] == 404
    assert ask(engine, "DELETE", "/?query=SELECT+1")[0] == 404


def test_tables_are_looked_for_in_database_headroom(engine: EngineProcess) -> None:
    assert ask(engine, "GET", "/?query=SELECT+count()+FROM+quota_limits")[0] == 200
    assert ask(engine, "GET", "/?query=SELECT+count()+FROM+tables&database=system")[0] == 200
    assert ask(engine, "GET", "/?query=SELECT+count()+FROM+tables", X_ClickHouse_Database="system")[0] == 200
    status, _, headers = ask(engine, "GET", "/?query=SELECT+1&database=nosuch")
    assert (status, headers["X-ClickHouse-Exception-Code"]) == (404, "81")


@pytest.mark.parametrize("output_format", ["JSON", "Parquet", "CSVWithNames", "PrettyCompact", "XML", "Arrow"])
def test_formats_with_a_beginning_and_an_end_come_whole(engine: EngineProcess, output_format: str) -> None:
    # More than one block: each of which would be a document of its own.
    sql = b"SELECT number FROM numbers(200000)"
    status, body, headers = ask(engine, "POST", f"/?default_format={output_format}", sql)
    assert (status, headers["X-ClickHouse-Format"]) == (200, output_format)
    match output_format:
        case "JSON":
            assert json.loads(body)["rows"] == 200_000
        case "Parquet":
            assert (body[:4], body[-4:]) == (b"PAR1", b"PAR1")
        case "CSVWithNames":
            assert body.count(b"number") == 1
        case "Arrow":
            assert pa.ipc.open_file(body).read_all().num_rows == 200_000


def test_totals_are_set_apart(engine: EngineProcess) -> None:
    sql = b"SELECT number % 2 AS k, count() FROM numbers(4) GROUP BY k WITH TOTALS ORDER BY k"
    assert ask(engine, "POST", "/", sql)[1] == b"0\t2\n1\t2\n\n0\t4\n"


def test_a_get_changes_nothing(engine: EngineProcess) -> None:
    status, _, headers = ask(engine, "GET", "/?query=CREATE+DATABASE+gotten")
    assert (status, headers["X-ClickHouse-Exception-Code"]) == (500, "164")


def test_pages_of_other_sites_are_refused(engine: EngineProcess) -> None:
    assert ask(engine, "POST", "/", b"SELECT 1", Origin="http://example.org")[0] == 403
    assert ask(engine, "POST", "/", b"SELECT 1", Origin=engine.url)[0] == 200


def test_users_and_sessions_are_let_through(engine: EngineProcess) -> None:
    path = "/?" + urlencode({"query": "SELECT 1", "user": "u", "password": "p", "session_id": "s"})
    assert ask(engine, "GET", path, Authorization="Basic dTpw", X_ClickHouse_User="u", X_ClickHouse_Key="p")[0] == 200


def test_bodies_are_bounded(engine: EngineProcess) -> None:
    status, _, headers = ask(engine, "POST", "/", b"INSERT INTO t FORMAT TSV\n" + bytes(9 << 20))
    assert (status, headers["X-ClickHouse-Exception-Code"]) == (413, "552")
    assert ask(engine, "POST", "/", b"SELECT '" + b"x" * (1 << 19) + b"'")[0] == 413


def test_an_unknown_encoding_is_refused(engine: EngineProcess) -> None:
    status, _, headers = ask(engine, "POST", "/", b"x", Content_Encoding="br")
    assert (status, headers["X-ClickHouse-Exception-Code"]) == (415, "271")


def test_rubbish_on_the_socket(engine: EngineProcess) -> None:
    for rubbish in (b"\x00" * 100, b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n", b"A" * (1 << 19)):
        # It may be closed at once, with our rubbish unread.
        with socket.create_connection((engine.host, engine.port), 30) as raw, contextlib.suppress(OSError):
            raw.sendall(rubbish)
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(65536):
                pass
    assert ask(engine, "GET", "/ping")[0] == 200


def _left_over(store: Store) -> list[str]:
    assert store.engine is not None
    return [path.name for path in (store.engine.directory / "sql-door").iterdir()]


def test_a_reader_that_leaves_costs_nothing(engine: EngineProcess) -> None:
    for sql in (b"SELECT number FROM numbers(100000000000)", b"SELECT number FROM numbers(3000000) FORMAT JSON"):
        for _ in range(5):  # more than may run at a time
            with socket.create_connection((engine.host, engine.port), timeout=30) as raw:
                raw.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(sql), sql))
                assert raw.recv(1000).startswith(b"HTTP/1.1 200")
    assert ask(engine, "GET", "/?query=SELECT+1")[0] == 200
    assert engine.run(_left_over) == []


def _running(store: Store) -> int:
    sql = "SELECT count() FROM system.processes WHERE query LIKE '%sipHash64%' AND query NOT LIKE '%system%'"
    return int(store.query(sql)[0][0])


def test_a_query_that_nobody_waits_for_is_cancelled(engine: EngineProcess) -> None:
    with socket.create_connection((engine.host, engine.port), timeout=30) as raw:
        raw.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(NEVER_ENDS) + NEVER_ENDS.encode())
        until(lambda: engine.run(_running) == 1)
    until(lambda: engine.run(_running) == 0)


def until(happened: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _second_door(store: Store, port: int) -> str:
    try:
        SqlDoor(store, "127.0.0.1", port).start()
    except OSError as exc:
        return str(exc)
    return "it opened"


def test_a_port_in_use(engine: EngineProcess) -> None:
    assert "Address already in use" in engine.run(_second_door, engine.port)


def _stopped_under_load(store: Store) -> tuple[float, int]:
    door = SqlDoor(store, "127.0.0.1", 0)
    host, port = door.start()
    status: list[int] = []

    def query() -> None:
        connection = http.client.HTTPConnection(host, port, timeout=60)
        connection.request("POST", "/", NEVER_ENDS)
        status.append(connection.getresponse().status)

    thread = threading.Thread(target=query)
    thread.start()
    until(lambda: _running(store) == 1)
    began = time.monotonic()
    door.stop()
    thread.join(10)
    return time.monotonic() - began, status[0]


def test_stopping_cancels_what_runs(engine: EngineProcess) -> None:
    took_s, status = engine.run(_stopped_under_load)
    assert took_s < 5
    assert status == 500


def test_a_server_has_a_door_of_its_own() -> None:
    with pytest.raises(ValueError, match="has its own"):
        SqlDoor(Store.server("http://127.0.0.1:1", ""), "127.0.0.1", 0)


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    from tests.kit.engine_process import engine_process

    left = tmp_path / "sql-door" / "result-x"
    left.parent.mkdir()
    left.write_bytes(b"x")
    with engine_process(tmp_path):
        assert not left.exists()
