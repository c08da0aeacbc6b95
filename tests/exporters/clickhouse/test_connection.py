"""Addresses, passwords and proxies of ClickHouse servers: which are accepted, printed, asked; which user may write."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from exporters.clickhouse.client import ClickHouse, with_writer
from exporters.clickhouse.connection import WRITER, Endpoint, password_of, proxy_of
from exporters.clickhouse.errors import StoreAwayError, StoreError
from exporters.clickhouse.ping import ping
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.fake_clickhouse import fake_clickhouse, http
from tests.kit.platforms.proxies import http_proxy
from tests.kit.proxy import running_proxy


def test_endpoint_has_default_ports_and_user() -> None:
    assert Endpoint.parse("http://h") == Endpoint("http", "h", 8123)
    assert Endpoint.parse("https://h/headroom/") == Endpoint("https", "h", 8443)
    named = Endpoint.parse("http://us%40er@[::1]:1/headroom", "pass")
    assert named == Endpoint("http", "::1", 1, "us@er", "pass")
    assert (str(named), named.netloc, named.url) == ("http://[::1]:1", "[::1]:1", "http://us%40er@[::1]:1/headroom")
    assert Endpoint.parse(named.url, "pass") == named
    assert "pass" not in repr(named)


@pytest.mark.parametrize(
    "url",
    [
        "", "clickhouse:9000", "http://", "ftp://h/headroom", "http://h:x", "http://h:0", "http://h:99999",
        "http://h/with-dash", "http://h/system", "http://h/a/with-dash", "http://h//a b/c", "http://h/a?database=9",
        "http://h/a?database=b&user=u", "http://h/a/b#f", "http://h/a/system", "http://h/a?database=system",
        "http://h/INFORMATION_SCHEMA", "http://h/9", "http://h/?user=u", "http://h/#f",
    ],
)  # fmt: skip
def test_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"is not http|names more than a server"):
        Endpoint.parse(url)


def test_url_may_name_another_database() -> None:
    other = Endpoint.parse("http://h/ops_2")
    assert (other.database, Endpoint.parse("http://h").database) == ("ops_2", "headroom")
    assert other.url == "http://h:8123/ops_2"
    with pytest.raises(ValueError, match="these have headroom, ops"):
        Endpoint.parse_nodes("http://a,http://b/ops")


@pytest.mark.parametrize(
    ("url", "path", "database"),
    [
        ("https://gw:443/clickhouse/headroom", "/clickhouse", "headroom"),
        ("https://gw:443/team-a/click.house/ops/", "/team-a/click.house", "ops"),
        ("https://gw:443/clickhouse?database=ops", "/clickhouse", "ops"),
        ("https://gw:443/clickhouse/?database=", "/clickhouse", "headroom"),
        ("https://gw:443/?database=ops", "", "ops"),
    ],
)
def test_path_of_a_gateway_comes_before_the_database(url: str, path: str, database: str) -> None:
    endpoint = Endpoint.parse(url)
    assert (endpoint.path, endpoint.database, str(endpoint)) == (path, database, f"https://gw:443{path}")
    assert Endpoint.parse(endpoint.url) == endpoint


@pytest.mark.clickhouse
def test_server_below_a_path_is_reached_by_statements_and_ping(clickhouse: RunningClickHouse) -> None:
    with http_proxy(clickhouse.writer, prefix="/click/house") as url:
        writer = replace(clickhouse.writer, port=Endpoint.parse(url).port, path="/click/house")
        assert ClickHouse((writer,)).rows("SELECT 1 AS one") == [{"one": 1}]
        ping((writer,), 5)
        with pytest.raises(StoreError, match=r"not as ClickHouse: .*404.*as in https://gateway/clickhouse/headroom"):
            ClickHouse((replace(writer, path=""),)).rows("SELECT 1 AS one")


def test_port_that_the_url_did_not_name_is_said() -> None:
    with pytest.raises(StoreAwayError, match=r"cannot reach https://127\.0\.0\.1:8443: .*a gateway may have 443"):
        ClickHouse((Endpoint.parse("https://127.0.0.1/headroom"),)).rows("SELECT 1 AS one")


REDIRECT = b"HTTP/1.1 308 Permanent Redirect\r\nLocation: https://127.0.0.1:1/?secret\r\nContent-Length: 0\r\n\r\n"


def test_redirect_is_named_and_not_followed() -> None:
    """Of a load balancer that has only https. The port in its URL refuses connections."""
    with fake_clickhouse(REDIRECT, version="") as fake, pytest.raises(StoreAwayError) as away:
        ClickHouse((Endpoint.parse(fake.url),)).rows("SELECT 1 AS one")
    to = "it redirects to https://127.0.0.1:1/; name the server by that URL"
    assert str(away.value) == f"cannot reach {fake.url}: {to}"


@pytest.mark.parametrize("url", ["http://u:hidden@h", "http://:hidden@h:1/headroom", "ftp://u:hidden@", "http://u:@h"])
def test_password_in_url_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ValueError, match="HEADROOM_CLICKHOUSE_PASSWORD_FILE") as refused:
        Endpoint.parse(url)
    assert "hidden" not in str(refused.value)


def test_password_is_read_from_environment_or_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("pä ss\n")
    assert password_of({}) == ""
    assert password_of({"HEADROOM_CLICKHOUSE_PASSWORD": "x"}) == "x"
    assert password_of({"HEADROOM_CLICKHOUSE_PASSWORD_FILE": str(tmp_path / "secret")}) == "pä ss"
    with pytest.raises(FileNotFoundError):
        password_of({"HEADROOM_CLICKHOUSE_PASSWORD_FILE": str(tmp_path / "nowhere")})
    with pytest.raises(ValueError, match="not both"):
        password_of({"HEADROOM_CLICKHOUSE_PASSWORD": "x", "HEADROOM_CLICKHOUSE_PASSWORD_FILE": str(tmp_path)})


@contextmanager
def naming(file: Path) -> Iterator[str]:
    """A server that names this file; its URL."""
    with fake_clickhouse(http(orjson.dumps({"file": str(file)}) + b"\n")) as fake:
        yield fake.url


def test_local_server_provides_writer_credentials(tmp_path: Path) -> None:
    file = tmp_path / "writer.password"
    file.write_text("0" * 64 + "\n")
    with naming(file) as url:
        writer = with_writer(Endpoint.parse(url))
        assert (writer.user, writer.password) == ("headroom_writer", "0" * 64)
        assert with_writer(Endpoint.parse(url.replace("//", "//me@"), "mine")).password == "mine"


@pytest.mark.parametrize(("name", "content"), [("writer.password", "root:x:0:0"), ("id_rsa", "0" * 64)])
def test_writer_password_is_read_only_from_a_valid_file(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with naming(tmp_path / name) as url:
        assert with_writer(Endpoint.parse(url)) == Endpoint.parse(url)


@pytest.mark.parametrize("url", ["http://clickhouse.example:1", "http://127.0.0.1:1"])
def test_remote_server_is_not_asked_for_a_writer_and_an_unreachable_one_has_none(url: str) -> None:
    assert with_writer(Endpoint.parse(url)) == Endpoint.parse(url)


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
