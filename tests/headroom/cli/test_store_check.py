"""`headroom store check`: says by name what does not fit, before the first row."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from exporters.clickhouse.connection import ANY_DATABASE, PASSWORD, Endpoint
from exporters.clickhouse.store import TransientWriteError
from headroom.cli.main import app
from quota_metrics.verdict.thresholds import SCHEMA_VALUES
from tests.kit.clickhouse import QueriedStore, connected
from tests.kit.platforms.profiles import PASSWORD as SECRET
from tests.kit.platforms.profiles import ForeignServer, Profile, foreign_server
from tests.kit.platforms.proxies import http_proxy, load_balancer

PROFILES = {
    "plain": Profile(),
    "nulls": Profile({"join_use_nulls": 1}, frozenset({"join_use_nulls"})),
    "reader": Profile({"readonly": 1, "session_timezone": "UTC"}),
    "no_tables": Profile({"allow_ddl": 0}),
}


@pytest.fixture(scope="module")
def two_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ForeignServer, ForeignServer]]:
    directory = tmp_path_factory.mktemp("servers")
    with ExitStack() as stack:
        first, second = (stack.enter_context(foreign_server(directory / name, PROFILES)) for name in ("a", "b"))
        yield first, second


def check(url: str, user: str = "plain", *more: str) -> tuple[int, dict[str, tuple[str, str]]]:
    """The exit status, and each check with its result and advice."""
    url = url.replace("//", f"//{user}@")
    args = ["store", "check", "--clickhouse", url, "--output", "json", *more]
    done = CliRunner().invoke(app, args, env={PASSWORD: SECRET})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    return done.exit_code, {row["check"]: (row["result"], row["advice"]) for row in json.loads(done.stdout)}


def refused(url: str, user: str = "plain") -> str:
    """The advice of the one check that fails."""
    status, findings = check(url, user)
    assert status == 1
    (reason,) = [advice for result, advice in findings.values() if result == "fail"]
    return reason


def url_of(server: ForeignServer, path: str = "") -> str:
    return f"{server.writer}{path}"


def databases(server: ForeignServer) -> set[str]:
    with connected(server.endpoint("plain", ANY_DATABASE)) as client:
        return {row[0] for row in client.query("SELECT name FROM system.databases").result_rows}


@pytest.mark.clickhouse
def test_server_that_fits_passes_and_keeps_nothing(two_servers: tuple[ForeignServer, ForeignServer]) -> None:
    before = databases(two_servers[0])
    status, findings = check(url_of(two_servers[0]))
    assert status == 0, findings
    assert findings["database headroom does not exist yet"][0] == "note"
    assert databases(two_servers[0]) == before
    status, findings = check(url_of(two_servers[0], "/default"))
    assert (status, findings["rows that are sent again count once"]) == (0, ("ok", ""))
    with connected(two_servers[0].endpoint("plain", "default")) as client:
        assert client.query("SHOW TABLES").result_rows == []


@pytest.mark.clickhouse
@pytest.mark.parametrize(
    ("user", "reason"),
    [
        ("nulls", "profile of user 'nulls' fixes what Headroom's statements need otherwise: join_use_nulls = 1"),
        ("reader", "deploy/clickhouse/roles/writers.sql"),
        ("no_tables", "allow_ddl = 0, with which nobody may create tables"),
        ("nobody", "refuses user 'nobody'"),
    ],
)
def test_user_that_does_not_fit_is_named(
    two_servers: tuple[ForeignServer, ForeignServer], user: str, reason: str
) -> None:
    assert reason in refused(url_of(two_servers[0]), user)


@pytest.mark.clickhouse
@pytest.mark.parametrize(
    ("proxy", "reason"),
    [
        ("drops_settings", "settings of statements do not reach the server"),
        ("hides_errors", "a result that breaks off in the middle looks whole"),
    ],
)
def test_proxy_that_drops_settings_or_hides_errors_is_named(
    two_servers: tuple[ForeignServer, ForeignServer], proxy: str, reason: str
) -> None:
    with http_proxy(two_servers[0].endpoint("plain"), **{proxy: True}) as url:
        assert reason in refused(url)


@pytest.mark.clickhouse
def test_gateway_with_a_path_passes(two_servers: tuple[ForeignServer, ForeignServer]) -> None:
    with http_proxy(two_servers[0].endpoint("plain"), prefix="/clickhouse") as url:
        assert check(f"{url}/clickhouse/headroom")[0] == 0
        assert "as in https://gateway/clickhouse/headroom" in refused(url)


@pytest.mark.clickhouse
def test_two_servers_behind_one_address_are_refused(two_servers: tuple[ForeignServer, ForeignServer]) -> None:
    reason = "2 servers answer at .*, and they do not share their rows"
    endpoints = [server.endpoint("plain", "split") for server in two_servers]
    with load_balancer(*endpoints) as url:
        assert "2 servers answer" in refused(url)
        behind = replace(endpoints[0], port=Endpoint.parse(url).port)
        with pytest.raises(TransientWriteError, match=reason):
            QueriedStore(behind).migrate(SCHEMA_VALUES)
    with pytest.raises(TransientWriteError, match=reason):
        QueriedStore(*endpoints).migrate(SCHEMA_VALUES)
    assert all("split" not in databases(server) for server in two_servers)
    with load_balancer(endpoints[0], endpoints[0]) as url:
        assert check(url)[0] == 0


def test_store_that_is_away_and_an_address_that_is_none() -> None:
    assert "cannot reach http://127.0.0.1:1: Connection refused" in refused("http://127.0.0.1:1")
    assert CliRunner().invoke(app, ["store", "check", "--clickhouse", "ftp://x"]).exit_code == 2
    table = CliRunner().invoke(app, ["store", "check", "--clickhouse", "http://127.0.0.1:1"])
    assert table.stdout.startswith("FAIL http://127.0.0.1:1 answers as ClickHouse\n     cannot reach")
