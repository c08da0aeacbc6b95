"""Attacks on the SQL endpoint by callers without a password, and by pages in an operator's browser."""

from __future__ import annotations

import http.client
import re
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import pytest

from exporters.clickhouse.connection import Endpoint
from tests.attack.sql_statements import BOMBS, CHANGES, FETCHES, FILES, OTHERS
from tests.kit.clickhouse import RunningClickHouse, running_clickhouse

pytestmark = pytest.mark.clickhouse

SECRET = "what-nobody-may-read"
BOMB_BYTES = 1_500 << 20  # of the server while queries try to take more; its limit is 2 GiB, a reader's half of it


@dataclass(frozen=True)
class Victim:
    """A server, a file beside it and a port that counts who connects."""

    clickhouse: RunningClickHouse
    directory: Path
    trap: socket.socket

    def ask(
        self, sql: str | None, *, body: str | None = None, headers: dict[str, str] | None = None, **parameters: object
    ) -> tuple[int, str]:
        """A GET of `sql`, or a POST of `body`: the status and the text of the answer."""
        connection = http.client.HTTPConnection(self.clickhouse.host, self.clickhouse.port, timeout=60)
        asked = {**({} if sql is None else {"query": sql}), **parameters}
        try:
            connection.request("GET" if body is None else "POST", f"/?{urlencode(asked)}", body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read().decode("utf-8", "replace")
        finally:
            connection.close()

    def filled(self, text: str) -> str:
        return text.format(
            secret=self.directory / "secret", out=self.directory / "out", trap=self.trap.getsockname()[1]
        )


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    directory = tmp_path_factory.mktemp("attack")
    (directory / "secret").write_text(SECRET)
    with socket.create_server(("127.0.0.1", 0)) as trap, running_clickhouse(directory / "clickhouse") as clickhouse:
        trap.settimeout(0)
        clickhouse.store.query("INSERT INTO headroom.quota_limits (cluster, user) VALUES ('kept', 'u')")
        yield Victim(clickhouse, directory, trap)


@pytest.fixture(autouse=True)
def unharmed(victim: Victim) -> Iterator[None]:
    """After each attack: nothing read, written, fetched or dropped, and the server answers."""
    yield
    assert not (victim.directory / "out").exists()
    with pytest.raises(BlockingIOError):
        victim.trap.accept()
    assert victim.ask("SELECT count() FROM headroom.quota_limits WHERE cluster = 'kept'") == (200, "1\n")


@pytest.mark.parametrize("by_post", [False, True], ids=["GET", "POST"])
@pytest.mark.parametrize("sql", [*FILES, *FETCHES, *CHANGES, *OTHERS])
def test_a_reader_is_refused(victim: Victim, sql: str, by_post: bool) -> None:
    status, answer = victim.ask(None, body=victim.filled(sql)) if by_post else victim.ask(victim.filled(sql))
    assert SECRET not in answer
    assert status >= 400, answer


@pytest.mark.parametrize(
    "parameters",
    [
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
        {"max_temporary_data_on_disk_size_for_query": 0},
        {"max_parser_depth": 0},
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
    ],
)
def test_parameters_lift_nothing(victim: Victim, parameters: dict[str, object]) -> None:
    filled = {name: victim.filled(value) if isinstance(value, str) else value for name, value in parameters.items()}
    status, answer = victim.ask("SELECT 1", **filled)
    assert status >= 400, answer
    if set(parameters) - {"default_format", "database", "role", "user", "password"}:
        quoted = {name: f'"{text}"' if "'" in (text := str(value)) else f"'{text}'" for name, value in filled.items()}
        settings = ", ".join(f"{name} = {value}" for name, value in quoted.items())
        assert victim.ask(None, body=f"SELECT 1 SETTINGS {settings}")[0] >= 400


@pytest.mark.parametrize(
    "headers",
    [
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
    ],
)
@pytest.mark.parametrize("body", [None, "SELECT 1"], ids=["GET", "POST"])
def test_pages_of_other_sites_and_forged_headers_are_refused(
    victim: Victim, headers: dict[str, str], body: str | None
) -> None:
    status, answer = victim.ask("SELECT 1" if body is None else None, body=body, headers=headers)
    assert status >= 400, answer
    assert answer != "1\n"


@pytest.mark.parametrize("method", ["OPTIONS", "PUT", "DELETE", "TRACE"])
def test_other_methods_and_paths_are_refused(victim: Victim, method: str) -> None:
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
def test_a_query_that_takes_all_it_can_is_ended(victim: Victim, sql: str) -> None:
    status, answer = victim.ask(None, body=sql, max_execution_time=4, wait_end_of_query=1)
    assert status >= 400, answer[:200]
    assert _rss_bytes(victim) < BOMB_BYTES


def _rss_bytes(victim: Victim) -> int:
    process = victim.clickhouse.server.process
    assert process is not None
    peak = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    assert peak is not None
    return int(peak[1]) << 10


def test_clients_that_send_settings_are_served(victim: Victim) -> None:
    """Settings as JDBC, Grafana and clickhouse-connect send them."""
    sent = {
        "max_execution_time": 30, "max_result_rows": 1000, "session_timezone": "Europe/Berlin", "max_block_size": 1000,
        "wait_end_of_query": 1, "date_time_output_format": "iso", "session_id": "s", "query_id": "q", "compress": 0,
    }  # fmt: skip
    assert victim.ask("SELECT getSetting('max_execution_time')", **sent) == (200, "30\n")
    with victim.clickhouse.reader.connect(settings={"max_threads": 2}) as client:
        assert (
            client.query("SELECT count() FROM information_schema.tables WHERE table_schema = 'headroom'").first_row[0]
            > 5
        )
        assert "quota_limits" in [row[0] for row in client.query("SHOW TABLES").result_rows]
        assert client.query_arrow("SELECT number FROM numbers(3)").num_rows == 3


def test_only_the_owner_can_read_the_password_of_the_writer(victim: Victim) -> None:
    directory = victim.directory / "clickhouse"
    for name in ("writer.password", "users.xml", "server.xml"):
        assert stat.S_IMODE((directory / name).stat().st_mode) == 0o600
    assert (directory / "writer.password").read_text().strip() not in (directory / "users.xml").read_text()
    status, answer = victim.ask("SELECT getMacro('headroom_writer_password_file')")
    assert (status, answer.strip()) == (200, str(directory / "writer.password"))
    assert Endpoint.parse(victim.clickhouse.url).as_writer() == victim.clickhouse.writer
