"""Attacks on the SQL endpoint by callers without a password, and by pages in an operator's browser; on all interfaces,
who needs a password, and which names in a Host header are answered."""

from __future__ import annotations

import contextlib
import http.client
import socket
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from exporters.clickhouse.client import ClickHouse, with_writer
from exporters.clickhouse.connection import Endpoint
from exporters.clickhouse.errors import StoreLoginError
from exporters.clickhouse.managed.access import users_document
from exporters.clickhouse.managed.configuration import ServerSettings
from exporters.clickhouse.store import Store
from quota_metrics.verdict.thresholds import SCHEMA_VALUES
from tests.attack.sql_statements import (
    BOMBS,
    CHANGES,
    FETCHES,
    FILES,
    HALF_REQUESTS,
    HEADERS,
    OTHERS,
    PARAMETERS,
)
from tests.attack.sql_victim import SqlVictim, half_sent, sql_victim
from tests.kit.clickhouse import LaunchedServer, connected
from tests.kit.serving import eventually

pytestmark = [pytest.mark.release, pytest.mark.clickhouse]

HALF_SENT_MB = 400.0  # of the server: a thread and its buffers for each
SERVER_BYTES = ServerSettings(Path()).memory_bytes  # the limit of the server; all readers together have half of it
HALF_SENT = 100  # of each kind
STATEMENTS = {"files": FILES, "addresses": FETCHES, "changes": CHANGES, "other users and the server": OTHERS}


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlVictim]:
    with sql_victim(tmp_path_factory.mktemp("attack")) as running:
        yield running


@pytest.mark.parametrize("by_post", [False, True], ids=["GET", "POST"])
@pytest.mark.parametrize("target", STATEMENTS)
def test_forbidden_statements_of_a_reader_are_refused(
    victim: SqlVictim, target: str, by_post: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    method = "POST" if by_post else "GET"
    with victim.attack(f"{len(STATEMENTS[target])} statements that reach for {target}, by {method}", capsys):
        for sql in map(victim.filled, STATEMENTS[target]):
            victim.refuses(None if by_post else sql, body=sql if by_post else None)


def test_parameters_cannot_lift_restrictions(victim: SqlVictim, capsys: pytest.CaptureFixture[str]) -> None:
    with victim.attack(f"{len(PARAMETERS)} parameters that would lift limits or change the user", capsys):
        for parameters in PARAMETERS:
            filled: dict[str, Any] = {
                name: victim.filled(value) if isinstance(value, str) else value for name, value in parameters.items()
            }
            victim.refuses("SELECT 1", **filled)
            if not set(parameters) & {"default_format", "database", "role", "user", "password", "session_id"}:
                quoted = {
                    name: f'"{text}"' if "'" in (text := str(value)) else f"'{text}'" for name, value in filled.items()
                }
                settings = ", ".join(f"{name} = {value}" for name, value in quoted.items())
                victim.refuses(None, body=f"SELECT 1 SETTINGS {settings}")


@pytest.mark.parametrize("body", [None, "SELECT 1"], ids=["GET", "POST"])
def test_cross_site_requests_and_forged_headers_are_refused(
    victim: SqlVictim, body: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    method = "GET" if body is None else "POST"
    with victim.attack(f"{method} by pages of other sites, with {len(HEADERS)} forged headers", capsys):
        for headers in HEADERS:
            victim.refuses("SELECT 1" if body is None else None, body=body, headers=headers)


@pytest.mark.parametrize("method", ["OPTIONS", "PUT", "DELETE", "TRACE"])
def test_other_methods_and_paths_are_refused(victim: SqlVictim, method: str) -> None:
    connection = http.client.HTTPConnection(victim.clickhouse.host, victim.clickhouse.port, timeout=60)
    connection.request(method, "/?query=SELECT+1", headers={"Origin": "http://attacker.example"})
    answer = connection.getresponse()
    assert answer.status >= 400
    assert answer.getheader("Access-Control-Allow-Origin") is None
    connection.close()
    for path in ("/play", "/dashboard", "/replicas_status", "/js/uplot.js", "/metrics", "/headroom?query=SELECT+1"):
        connection.request("GET", path)
        assert connection.getresponse().status == 404
        connection.close()


@pytest.mark.parametrize("sql", BOMBS, ids=[sql[:40] for sql in BOMBS])
def test_excessive_query_is_aborted(victim: SqlVictim, sql: str, capsys: pytest.CaptureFixture[str]) -> None:
    with victim.attack(f"the query {sql[:60]}...", capsys):
        victim.refuses(None, body=sql, max_execution_time=4, wait_end_of_query=1)
        memory = victim.clickhouse.process.memory_info()
        assert memory.rss - memory.shared < SERVER_BYTES  # shared: pages of the program, which the limit does not count


def test_partial_requests_delay_no_other_client(victim: SqlVictim, capsys: pytest.CaptureFixture[str]) -> None:
    """The server closes them after `http_receive_timeout`; until then each has a thread, and others are served."""
    with contextlib.ExitStack() as stack:
        opened: list[socket.socket] = []

        def still_open() -> int:
            """Opens all, has a reader ask, and counts those that the server has not closed meanwhile."""
            stack.close()
            opened[:] = [
                stack.enter_context(half_sent(victim, one)) for one in HALF_REQUESTS.values() for _ in range(HALF_SENT)
            ]
            assert victim.ask("SELECT 1") == (200, "1\n")
            return sum(is_open(one) for one in opened)

        count = len(HALF_REQUESTS) * HALF_SENT
        with victim.attack(f"{count} connections with {', '.join(HALF_REQUESTS)} of a request", capsys) as report:
            eventually(still_open, lambda number: number == count)
            report.shown = f"a reader is served while all {count} are open; then they are closed"
            for one in opened:
                read_to_the_end(one)
    assert report.peak_mb < HALF_SENT_MB


def read_to_the_end(client: socket.socket) -> None:
    """Returns when the server has closed the connection, with or without an error message. Raises TimeoutError."""
    client.settimeout(60)
    with contextlib.suppress(ConnectionError):
        while client.recv(1 << 16):
            pass


def is_open(client: socket.socket) -> bool:
    """Whether the server has neither answered nor closed the connection."""
    client.settimeout(0)
    try:
        return client.recv(1) == b"never"
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def test_password_of_the_pages_is_not_known_to_readers(victim: SqlVictim) -> None:
    for password in ("", "x"):
        with pytest.raises(StoreLoginError, match="refuses user 'headroom_pages'"):
            ClickHouse((replace(victim.pages, password=password),)).rows("SELECT 1 AS one")


def test_common_client_settings_are_accepted(victim: SqlVictim) -> None:
    """Settings as JDBC, Grafana and clickhouse-connect send them."""
    sent: dict[str, Any] = {
        "max_execution_time": 30, "max_result_rows": 1000, "session_timezone": "Europe/Berlin", "max_block_size": 1000,
        "wait_end_of_query": 1, "date_time_output_format": "iso", "session_id": "s", "query_id": "q", "compress": 0,
    }  # fmt: skip
    assert victim.ask("SELECT getSetting('max_execution_time')", **sent) == (200, "30\n")
    with connected(victim.clickhouse.reader, settings={"max_threads": 2}) as client:
        tables = "SELECT count() FROM information_schema.tables WHERE table_schema = 'headroom'"
        assert client.query(tables).result_rows[0][0] > 5
        assert "quota_limits" in [row[0] for row in client.query("SHOW TABLES").result_rows]
        assert client.query_arrow("SELECT number FROM numbers(3)").num_rows == 3


def test_writer_password_is_readable_by_its_owner_only(victim: SqlVictim) -> None:
    directory = victim.directory / "clickhouse"
    for name in ("writer.password", "users.xml", "server.xml"):
        assert stat.S_IMODE((directory / name).stat().st_mode) == 0o600
    assert (directory / "writer.password").read_text().strip() not in (directory / "users.xml").read_text()
    status, answer = victim.ask("SELECT getMacro('headroom_writer_password_file')")
    assert (status, answer.strip()) == (200, str(directory / "writer.password"))
    assert with_writer(Endpoint.parse(victim.clickhouse.url)) == victim.clickhouse.writer


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LaunchedServer]:
    """A server on all interfaces, whose reader has a password."""
    directory = tmp_path_factory.mktemp("elsewhere")
    running = LaunchedServer(
        ServerSettings(directory, host="0.0.0.0", reader_password="reader's", host_names=("ch.example",))
    )
    try:
        running.launch()
        running.wait_ready()
        Store(running.writer).migrate(SCHEMA_VALUES)
        yield running
    finally:
        running.stop()


def test_users_without_password_are_restricted_to_loopback() -> None:
    """Checked in the document, because ClickHouse treats every address of this machine as local."""
    users = users_document("w", "r", 1 << 30)["users"]
    assert users["default"]["networks"]["ip"] == ["127.0.0.1", "::1"]
    assert all("password_sha256_hex" in user for user in users.values() if user["networks"]["ip"] == "::/0")
    assert users_document("w", "", 1 << 30)["users"]["headroom_reader"]["networks"]["ip"] == ["127.0.0.1", "::1"]


@pytest.mark.parametrize(
    ("user", "password", "host", "status"),
    [
        ("headroom_reader", "", "127.0.0.1", 403),
        ("headroom_reader", "guess", "127.0.0.1", 403),
        ("headroom_writer", "", "127.0.0.1", 403),
        ("headroom_writer", None, "127.0.0.1", 200),
        ("default", "", "127.0.0.1", 200),
        ("headroom_reader", "reader's", "127.0.0.1", 200),
        ("headroom_reader", "reader's", "ch.example", 200),
        ("headroom_reader", "reader's", "ch.example:8123", 200),
        ("headroom_reader", "reader's", "chaexample", 404),
        ("headroom_reader", "reader's", "x.ch.example", 404),
    ],
)
def test_users_need_their_password_and_configured_host_names(
    elsewhere: LaunchedServer, user: str, password: str | None, host: str, status: int
) -> None:
    login = None if user == "default" else (user, elsewhere.writer.password if password is None else password)
    url = f"http://127.0.0.1:{elsewhere.http_port}/?query=SELECT+1&database=system"
    assert httpx.get(url, auth=login, headers={"Host": host}, timeout=30).status_code == status
