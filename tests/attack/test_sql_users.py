"""The SQL endpoint on all interfaces: who needs a password, and which names in a Host header are answered."""

from __future__ import annotations

import base64
import http.client
from collections.abc import Iterator

import pytest

from exporters.clickhouse.managed.access import users_document
from exporters.clickhouse.managed.configuration import ServerSettings
from exporters.clickhouse.store import Store
from quota_metrics.verdict.thresholds import SCHEMA_VALUES
from tests.kit.clickhouse import LaunchedServer

pytestmark = [pytest.mark.release, pytest.mark.clickhouse]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LaunchedServer]:
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


def ask(server: LaunchedServer, user: str = "", password: str = "", *, host: str = "127.0.0.1") -> int:
    """The status of a SELECT."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)
    headers = {"Host": host}
    if user:
        headers["Authorization"] = f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"
    try:
        connection.request("GET", "/?query=SELECT+1&database=system", headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_users_without_password_are_restricted_to_loopback() -> None:
    """Checked in the document, because ClickHouse treats every address of this machine as local."""
    users = users_document("w", "r", 1 << 30)["users"]
    assert users["default"]["networks"]["ip"] == ["127.0.0.1", "::1"]
    assert all("password_sha256_hex" in user for user in users.values() if user["networks"]["ip"] == "::/0")
    assert users_document("w", "", 1 << 30)["users"]["headroom_reader"]["networks"]["ip"] == ["127.0.0.1", "::1"]


def test_missing_or_wrong_password_is_refused(server: LaunchedServer) -> None:
    assert ask(server, "headroom_reader") == 403
    assert ask(server, "headroom_reader", "guess") == 403
    assert ask(server, "headroom_writer", "") == 403


def test_correct_password_is_accepted(server: LaunchedServer) -> None:
    assert ask(server, "headroom_reader", "reader's") == 200
    assert ask(server, "headroom_writer", server.writer.password) == 200


def test_default_user_may_read(server: LaunchedServer) -> None:
    assert ask(server) == 200


@pytest.mark.parametrize(
    ("host", "status"), [("ch.example", 200), ("ch.example:8123", 200), ("chaexample", 404), ("x.ch.example", 404)]
)
def test_only_configured_host_names_are_served(server: LaunchedServer, host: str, status: int) -> None:
    assert ask(server, "headroom_reader", "reader's", host=host) == status
