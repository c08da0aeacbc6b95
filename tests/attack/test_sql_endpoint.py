"""Attacks on the SQL endpoint by callers without a password, and by pages in an operator's browser; on all interfaces,
who needs a password, and which names in a Host header are answered."""

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
from tests.attack.sql_victim import SqlVictim, half_sent, sql_victim
from tests.kit.clickhouse import LaunchedServer, connected, launched
from tests.kit.serving import eventually

pytestmark = [pytest.mark.release, pytest.mark.clickhouse]

HALF_SENT_MB = 400.0  # of the server: a thread and its buffers for each
SERVER_BYTES = ServerSettings(Path()).memory_bytes  # the limit of the server; all readers together have half of it
HALF_SENT = 100  # of each kind
# Requests that a reader must not make. {secret} and {out} are files outside the server's directory, {trap} a port.
FILES = [
    "SELECT 'x' INTO OUTFILE '{out}' FORMAT TSV",
    "SELECT 'x' INTO OUTFILE '{out}' APPEND FORMAT TSV",
    "SELECT file('{secret}')",
    "SELECT `file`('{secret}')",
    "SELECT `fi\\x6ce`('{secret}')",
    "SELECT \"file\"('{secret}')",
    "SELECT $x$ , file('{secret}')",
    "SELECT $x$a$x$, file('{secret}')",
    "SELECT arrayMap(x -> file(x), ['{secret}'])",
    "SELECT arrayMap(file, ['{secret}'])",
    "SELECT * FROM values('a String', (file('{secret}')))",
    "SELECT file('../writer.password')",
    "SELECT file('../../secret')",
    "SELECT * FROM file('{secret}', 'LineAsString')",
    "DESCRIBE file('{secret}')",
    "SELECT * FROM `{secret}`",
    "SELECT * FROM filesystem('{secret}')",
    "SELECT 1 FORMAT Template SETTINGS format_template_row = '{secret}'",
    "SELECT 1 FORMAT Template SETTINGS format_template_row = '../writer.password'",
    "SELECT 1 FORMAT Template SETTINGS format_template_resultset = '../../secret'",
    "SELECT 1 FORMAT Protobuf SETTINGS format_schema = '{secret}:M'",
    "SELECT format_template_row('{secret}')",
    "SELECT * FROM sqlite('{secret}', 't')",
    "SELECT catboostEvaluate('{secret}', 1)",
    "SELECT * FROM executable('cat {secret}', 'TSV', 'a String')",
    "INSERT INTO FUNCTION file('{out}', 'TSV', 'a String') SELECT 'x'",
    "BACKUP DATABASE headroom TO File('{out}')",
    "SELECT * FROM Python(x)",
]

FETCHES = [
    "SELECT * FROM url('http://127.0.0.1:{trap}/', 'TSV', 'a String')",
    "DESCRIBE url('http://127.0.0.1:{trap}/')",
    "SELECT * FROM remote('127.0.0.1:{trap}', system.one)",
    "SELECT * FROM s3('http://127.0.0.1:{trap}/bucket/key')",
    "SELECT * FROM mysql('127.0.0.1:{trap}', 'd', 't', 'u', 'p')",
    "SELECT * FROM postgresql('127.0.0.1:{trap}', 'd', 't', 'u', 'p')",
    "SELECT * FROM mongodb('127.0.0.1:{trap}', 'd', 't', 'u', 'p', 'a Int8')",
    "SELECT * FROM redis('127.0.0.1:{trap}', 'k', 'k String')",
    "SELECT * FROM hdfs('hdfs://127.0.0.1:{trap}/f', 'TSV', 'a String')",
    "CREATE TABLE headroom.w (a Int8) ENGINE = MergeTree ORDER BY a"
    " SETTINGS disk = disk(type = web, endpoint = 'http://127.0.0.1:{trap}/')",
    "CREATE DATABASE w ENGINE = MySQL('127.0.0.1:{trap}', 'd', 'u', 'p')",
]

CHANGES = [
    "INSERT INTO headroom.quota_limits (cluster) VALUES ('x')",
    "DROP TABLE headroom.quota_limits",
    "TRUNCATE TABLE headroom.quota_limits",
    "ALTER TABLE headroom.quota_limits DELETE WHERE 1",
    "DELETE FROM headroom.quota_limits WHERE 1",
    "OPTIMIZE TABLE headroom.points FINAL",
    "DETACH TABLE headroom.quota_limits",
    "ATTACH TABLE headroom.q FROM '/etc' (a Int8) ENGINE = MergeTree ORDER BY a",
    "RENAME TABLE headroom.quota_limits TO headroom.gone",
    "CREATE TABLE headroom.t (a Int8) ENGINE = Memory",
    "CREATE TEMPORARY TABLE t (a Int8)",
    "CREATE VIEW headroom.v AS SELECT 1",
    "CREATE FUNCTION f AS x -> x",
    "CREATE USER u",
    "GRANT ALL ON *.* TO default",
    "KILL QUERY WHERE 1",
    "KILL MUTATION WHERE 1",
    "SYSTEM SHUTDOWN",
    "SYSTEM KILL",
    "SYSTEM RELOAD CONFIG",
    "SYSTEM STOP MERGES headroom.points",
    "SYSTEM FLUSH LOGS",
    "SELECT 1; DROP TABLE headroom.quota_limits",
    "EXECUTE AS headroom_writer SELECT 1",
]

OTHERS = [
    "SELECT * FROM system.users",
    "SELECT * FROM system.grants",
    "SELECT * FROM system.processes",
    "SELECT * FROM system.query_log",
    "SELECT * FROM system.server_settings",
    "SELECT * FROM system.replicas",
    "SELECT * FROM system.zookeeper WHERE path = '/'",
    "SHOW CREATE USER headroom_writer",
    "SHOW GRANTS FOR headroom_writer",
    "SELECT addressToSymbol(1)",
    "SELECT demangle('x')",
]

BOMBS = [
    "SELECT groupArray(number) FROM numbers(10000000000)",
    "SELECT arrayMap(x -> repeat('x', 1000000), range(1000000))",
    "SELECT length(repeat('a', 100000000000))",
    "SELECT count() FROM numbers(100000) a CROSS JOIN numbers(1000000000) b",
    "SELECT sipHash64(number) FROM numbers(100000000000) ORDER BY 1 FORMAT Null",
    "SELECT uniqExact(sipHash64(number)) FROM numbers(100000000000)",
    "SELECT range(number) FROM numbers(1000000000) FORMAT Null",
    "WITH RECURSIVE r AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM r) SELECT count() FROM r",
    "SELECT " + "(" * 5000 + "1" + ")" * 5000,
    "SELECT " + "-" * 1 + "(-" * 3000 + "1" + ")" * 3000,
    "SELECT 1" + " UNION ALL SELECT 1" * 30_000,
]

# Settings, formats and users in the query string of `SELECT 1`.
PARAMETERS: list[dict[str, object]] = [
    {"default_format": "CSVWithNames; SELECT 'x' INTO OUTFILE '{out}' APPEND FORMAT TSV"},
    {"default_format": "TSV; DROP TABLE headroom.quota_limits"},
    {"database": "headroom; DROP TABLE headroom.quota_limits"},
    {"max_memory_usage": 0},
    {"max_memory_usage": 1 << 40},
    {"max_memory_usage_for_user": 0},
    {"max_execution_time": 0},
    {"max_execution_time": 86_400},
    {"max_result_bytes": 0},
    {"max_result_bytes": 1 << 40},
    {"max_concurrent_queries_for_user": 0},
    {"workload": "pages"},
    {"workload": "default"},
    {"max_temporary_data_on_disk_size_for_query": 0},
    {"max_parser_depth": 0},
    {"max_parser_backtracks": 0},
    {"max_threads": 5_000},
    {"max_final_threads": 5_000},
    {"max_untracked_memory": 1 << 40},
    {"http_send_timeout": 0},
    {"http_send_timeout": 86_400},
    {"receive_timeout": 0},
    {"session_id": "s", "session_timeout": 86_400},
    {"result_overflow_mode": "break"},
    {"timeout_overflow_mode": "break"},
    {"readonly": 0},
    {"readonly": 1, "max_execution_time": 0},
    {"allow_ddl": 1},
    {"allow_introspection_functions": 1},
    {"add_http_cors_header": 1},
    {"http_response_headers": "{{'Access-Control-Allow-Origin': '*'}}"},
    {"profile": "writer"},
    {"profile": "base"},
    {"role": "admin"},
    {"user": "headroom_writer"},
    {"user": "headroom_writer", "password": "guess"},
]

# Headers of pages of other sites, and of callers that forge an identity.
HEADERS: list[dict[str, str]] = [
    {"Host": "attacker.example"},
    {"Host": "attacker.example:8123"},
    {"Host": "127.0.0.1.attacker.example"},
    {"Host": "localhost.attacker.example"},
    {"Host": ""},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "image"},
    {"Sec-Fetch-Site": "same-site"},
    {"Origin": "http://attacker.example"},
    {"Origin": "null"},
    {"Origin": "https://127.0.0.1.attacker.example"},
    {"X-ClickHouse-Format": "TSV; DROP TABLE headroom.quota_limits"},
    {"X-ClickHouse-User": "headroom_writer", "X-ClickHouse-Key": "guess"},
    {"Authorization": "Basic aGVhZHJvb21fd3JpdGVyOg=="},
]

# The server closes these connections after `http_receive_timeout`.
HALF_REQUESTS = {
    "half a body": b"POST /?query= HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\nSELECT 1",
    "half a chunked body": b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n8\r\nSELECT 1\r\n",
    "half a header": b"POST / HTTP/1.1\r\nHost: local",
    "nothing": b"",
}

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
            for one in opened:  # the server closes it, with or without an error message
                one.settimeout(60)
                with contextlib.suppress(ConnectionError):
                    while one.recv(1 << 16):
                        pass
    assert report.peak_mb < HALF_SENT_MB


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
    with launched(
        LaunchedServer(
            ServerSettings(directory, host="0.0.0.0", reader_password="reader's", host_names=("ch.example",))
        )
    ) as running:
        Store(running.writer).migrate(SCHEMA_VALUES)
        yield running


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
