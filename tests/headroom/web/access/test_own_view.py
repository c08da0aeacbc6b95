"""Tokens of applications: each sees its own clients at /api/v1/me, and 403 at every other route."""

import base64
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from exporters.clickhouse.client import ClickHouse
from headroom.cli.top.screen import screen
from headroom.cli.top.state import TopState, row_key
from headroom.cli.top.tables import client_lines
from headroom.config.settings import ServeConfig
from headroom.server.health import Health
from headroom.server.listeners.kafka_listeners import NetworkService
from headroom.server.metrics import Snapshot
from headroom.server.pages import guarded, http_app
from quota_metrics.config.owners import NO_OWNERS
from tests.headroom.web.conftest import HOSTILE
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.serving import Served

pytestmark = pytest.mark.clickhouse

OPERATOR = "o" * 20
TOKENS: dict[str, tuple[dict[str, str], set[str]]] = {
    "a" * 20: ({"team": "payments"}, {"app-warn", "app-watch"}),
    "b" * 20: ({"user": HOSTILE}, {HOSTILE}),
    "c" * 20: ({"user": "alice", "client_id_prefix": "app-c"}, {"app-critical"}),
    "d" * 20: ({"user": "ali"}, set()),  # names are exact, only prefixes are parts
}
REACHED = {"/api/v1/me", "/me"}
PARTS = ("/static/headroom.css", "/static/me.js")  # of the page
PLACES = {"name": "x", "path": "no/such/page"}
each_token = pytest.mark.parametrize("token", TOKENS)


@pytest.fixture(scope="module")
def app(clickhouse: RunningClickHouse, serving: Served) -> Starlette:
    """The app of `headroom serve` over the store of `serving`, which computed its minutes."""
    assert serving.http
    store = ClickHouse((clickhouse.writer,))
    rules = SimpleNamespace(match_keys=(), resources={})
    network = SimpleNamespace(worst_payers=lambda most: [])
    gateway = SimpleNamespace(receiver=SimpleNamespace(rules=rules))
    service = SimpleNamespace(gateway=gateway, network=network, quotas=None)
    health = SimpleNamespace(verbose=lambda: SimpleNamespace(reason="", lines=list))
    parts: Any = store, cast(NetworkService, service), Snapshot, cast(Health, health), lambda: NO_OWNERS
    return http_app(config(clickhouse), *parts)


def config(clickhouse: RunningClickHouse) -> ServeConfig:
    scoped = [{"token": token, **scope} for token, (scope, _) in TOKENS.items()]
    web = {"token": OPERATOR, "tokens": scoped, "trusted_proxies": ["10.0.0.1/32"]}
    server = {"clickhouse": clickhouse.writer.url, "clickhouse_password": clickhouse.writer.password}
    return ServeConfig.model_validate({**server, "web": web, "owners": "owners.yaml"})


@pytest.fixture(scope="module")
def client(app: Starlette, clickhouse: RunningClickHouse) -> Iterator[TestClient]:
    with TestClient(guarded(config(clickhouse), app), "http://127.0.0.1:9644", follow_redirects=False) as opened:
        yield opened


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def password(token: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"me:{token}".encode()).decode()}


@each_token
def test_every_other_route_is_refused(client: TestClient, app: Starlette, token: str) -> None:
    every = []
    for route in app.routes:
        assert isinstance(route, Route | Mount)
        path = route.path if isinstance(route, Route) else f"{route.path}/anything"  # below a mount
        for name, text in PLACES.items():
            path = path.replace(f"{{{name}}}", text).replace(f"{{{name}:path}}", text)
        assert "{" not in path
        every.append(path)
    assert len(every) > 25
    assert set(every) > REACHED
    for path in (*every, "/api/v1/me/", "/api/v1/me/x", "//api/v1/headroom", "/API/V1/ME", "/me/", "/static/live.js"):
        for headers in (bearer(token), password(token), {**bearer(token), "x-forwarded-user": "operator"}):
            for method in ("GET", "HEAD", "POST"):
                answer = client.request(method, path, headers=headers)
                assert (answer.status_code == 403) == (path not in REACHED), (method, path, answer.status_code)
    assert [client.get(part, headers=bearer(token)).status_code for part in PARTS] == [200, 200]


@each_token
def test_token_sees_its_own_clients_only(client: TestClient, token: str) -> None:
    scope, expected = TOKENS[token]
    document = client.get("/api/v1/me", headers=bearer(token)).json()
    assert document["scope"] == scope
    assert {row["client_id"] for row in document["clients"]} == expected
    for given in ({"user": HOSTILE}, {"client_id": "app-ok"}, {"q": "app-ok"}, {"team": "unowned"}, {"source": "all"}):
        rows = client.get("/api/v1/me", params=given, headers=bearer(token)).json()["clients"]
        assert {row["client_id"] for row in rows} <= expected
    page = client.get("/me", headers=password(token)).text
    assert [name in page for name in ("app-ok", "app-throttled")] == [False, False]
    assert all((name in page) == (name in expected) for name in ("app-warn", "app-watch", "app-critical"))
    assert HOSTILE not in page


def test_document_says_how_to_pace(client: TestClient) -> None:
    document = client.get("/api/v1/me", headers=bearer("a" * 20)).json()
    assert (document["level"], document["retry_after_ms"]) == ("warn", 0)
    chosen = client.get("/api/v1/me?level=watch&level=critical", headers=bearer("a" * 20)).json()
    assert [row["level"] for row in chosen["clients"]] == ["watch"]
    assert 0 < document["next_in_ms"] <= 75_000
    left = {row["client_id"]: row["headroom_bytes_per_s"] for row in document["clients"]}
    assert left == {"app-warn": pytest.approx(15_000), "app-watch": pytest.approx(30_000)}
    assert not any(name.startswith(("culprit", "bucket")) for row in document["clients"] for name in row)
    lines = client_lines(document["clients"], 200)  # of `headroom top --token`
    assert [line.text.split()[:2] for line in lines[1:]] == [["warn", "app-warn"], ["watch", "app-watch"]]
    shown = TopState(rows=tuple(document["clients"]), detail=row_key(document["clients"][0]))
    assert "payments" in "".join(line.text for line in screen(shown, 80, 24))


def test_operators_and_nobody(client: TestClient) -> None:
    assert len(client.get("/api/v1/headroom", headers=bearer(OPERATOR)).json()) == 6
    answer = client.get("/api/v1/me", headers=bearer(OPERATOR))
    assert (answer.status_code, "web.tokens" in answer.json()["error"]) == (400, True)
    for path, status in (("/api/v1/headroom", 401), ("/", 401), ("/api/v1/me", 401), ("/healthz", 200)):
        assert client.get(path).status_code == status  # although it is on loopback
        assert client.get(path, headers=bearer("x" * 20)).status_code == status
    assert client.get("/api/v1/me", params={"level": "bad"}, headers=bearer("a" * 20)).status_code == 400
