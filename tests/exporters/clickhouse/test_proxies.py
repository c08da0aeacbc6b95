"""Which requests go through the environment's proxy: those to a server of the user's, and none to one of ours."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exporters.clickhouse.client import ClickHouse
from exporters.clickhouse.connection import WRITER, Endpoint, proxy_of
from exporters.clickhouse.errors import StoreAwayError
from exporters.clickhouse.ping import ping
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.proxy import running_proxy

_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.mark.parametrize(
    ("environment", "url", "proxy"),
    [
        ({}, "http://ch:8123", ""),
        ({"HTTP_PROXY": "http://p:3128"}, "http://ch:8123", "http://p:3128"),
        ({"http_proxy": "http://p:3128"}, "http://ch:8123", "http://p:3128"),
        ({"HTTP_PROXY": "p:3128"}, "http://ch:8123", "http://p:3128"),
        ({"HTTP_PROXY": "http://p:3128"}, "https://ch:8443", ""),
        ({"HTTPS_PROXY": "p:3128"}, "https://ch:8443", "http://p:3128"),
        ({"ALL_PROXY": "http://p:3128"}, "https://ch:8443", "http://p:3128"),
        ({"HTTP_PROXY": "http://p:3128", "http_proxy": ""}, "http://ch:8123", ""),
        ({"HTTP_PROXY": "http://p:3128"}, "http://127.0.0.1:8123", "http://p:3128"),  # a server of the user's
    ],
)
def test_the_proxy_is_that_of_the_scheme(
    environment: dict[str, str], url: str, proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    (node,) = Endpoint.parse_nodes(url)
    assert proxy_of(node) == proxy
    assert proxy_of(replace(node, is_direct=True)) == ""


@pytest.mark.parametrize(
    ("excepted", "host", "is_direct"),
    [
        ("ch", "ch", True),
        ("CH", "ch", True),
        ("other, ch", "ch", True),
        ("*", "ch", True),
        ("corp.example", "ch.corp.example", True),
        (".corp.example", "ch.corp.example", True),
        ("*.corp.example", "ch.corp.example", True),
        ("corp.example", "chcorp.example", False),
        ("ch:8123", "ch", True),
        ("ch:9000", "ch", False),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("10.1.2.3", "10.1.2.3", True),
        ("fd00::/8", "[fd00::1]", True),
        ("[fd00::1]", "[fd00::1]", True),
        ("::1", "[fd00::1]", False),
        (",,", "ch", False),
        ("300.0.0.0/8", "ch", False),
    ],
)
def test_exceptions_are_names_domains_and_networks(
    excepted: str, host: str, is_direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://p:3128")
    monkeypatch.setenv("NO_PROXY", excepted)
    (node,) = Endpoint.parse_nodes(f"http://{host}:8123")
    assert proxy_of(node) == ("" if is_direct else "http://p:3128")


@pytest.mark.parametrize("url", ["http://127.0.0.1:8123", "http://localhost:8123", "http://[::1]:8123"])
def test_commands_ask_a_server_on_this_machine_directly(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is Headroom's own: `headroom sql`, `headroom job`, the demo."""
    monkeypatch.setenv("HTTP_PROXY", "http://p:3128")
    assert proxy_of(Endpoint.parse(url)) == ""


def test_a_refusing_proxy_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_proxy() as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://user:secret@{proxy.address}")
        nodes = Endpoint.parse_nodes("http://clickhouse.invalid:8123")
        with pytest.raises(StoreAwayError, match=rf"through the proxy {proxy.address}") as queried:
            ClickHouse(nodes).rows("SELECT 1")
        with pytest.raises(StoreAwayError, match=rf"through the proxy {proxy.address}.*answers 403") as pinged:
            ping(nodes, 5.0)
    assert "secret" not in f"{queried.value} {pinged.value}"
    assert {line.split()[1].partition("?")[0].rstrip("/") for line in proxy.requests} == {
        "http://clickhouse.invalid:8123",
        "http://clickhouse.invalid:8123/ping",
    }


def test_https_is_a_tunnel_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_proxy() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.address)
        with pytest.raises(StoreAwayError):
            ClickHouse(Endpoint.parse_nodes("https://clickhouse.invalid")).rows("SELECT 1")
    assert proxy.requests
    assert all(line.startswith("CONNECT clickhouse.invalid:8443") for line in proxy.requests)


@pytest.mark.clickhouse
def test_a_server_behind_the_proxy_is_reached_with_the_proxy_s_login(
    clickhouse: RunningClickHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_proxy(f"{clickhouse.host}:{clickhouse.port}") as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://user:p%40ss@{proxy.address}")
        nodes = Endpoint.parse_nodes(f"http://{WRITER}@clickhouse.invalid:8123", clickhouse.writer.password)
        ping(nodes, 5.0)
        assert ClickHouse(nodes).rows("SELECT 1 AS one") == [{"one": 1}]
    assert set(proxy.logins) == {"Basic dXNlcjpwQHNz"}
