"""Who may read the pages: Host headers, tokens, proxies, other sites; and what an application reads of others."""

import base64
from typing import Any

import pytest
import structlog
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from headroom.config.settings import WebConfig
from headroom.web.access import OPEN_PATHS, AccessControl
from headroom.web.own_view import COLUMNS, ClientScope, Scopes, document
from quota_metrics.config.owners import parse_owners

TOKEN = "0123456789abcdef"


def client(*, token: str | None = None, is_loopback: bool = True, peer: str = "127.0.0.1", **config: Any) -> TestClient:
    def answer(_: Any) -> PlainTextResponse:
        return PlainTextResponse("page")

    app = Starlette(routes=[Route(path, answer) for path in ("/", *OPEN_PATHS)])
    control = AccessControl(app, WebConfig(**config), token, is_loopback=is_loopback)
    return TestClient(control, base_url="http://127.0.0.1:9644", client=(peer, 1))


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9644", 200),
        ("localhost:9644", 200),
        ("[::1]:9644", 200),
        ("10.1.2.3", 200),
        ("headroom.example:9644", 200),
        ("HEADROOM.example", 200),
        ("evil.example", 421),
        ("evil.example:9644", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example", 421),
        ("", 421),
        ("[::1", 200),
        ("[evil.example]", 421),
    ],
)
def test_foreign_hosts_are_refused(host: str, status: int) -> None:
    answer = client(host_names=("headroom.example",)).get("/", headers={"host": host})
    assert answer.status_code == status
    assert (answer.text == "page") == (status == 200)


@pytest.mark.parametrize(("path", "is_answered"), [("/readyz/kafka", True), ("/", False)])
def test_checks_of_load_balancers_in_http_1_0_need_no_host(path: str, is_answered: bool) -> None:
    control = AccessControl(Starlette(), WebConfig(), None, is_loopback=False)
    assert (control._refusal(Headers(raw=[]), {"path": path}) is None) == is_answered


def test_refused_hosts_are_logged_once_a_minute() -> None:
    clock = iter([100.0, 101.0, 159.9, 160.0, 161.0])
    control = AccessControl(Starlette(), WebConfig(), None, is_loopback=True, clock=lambda: next(clock))
    peer = TestClient(control, base_url="http://127.0.0.1:9644")
    with structlog.testing.capture_logs() as lines:
        for host in ("evil.example", "b.example", "c.example", "d\x1b[31m." + "e" * 100, "f.example"):
            assert peer.get("/", headers={"host": host}).status_code == 421
        assert peer.get("/", headers={"host": "localhost"}).status_code == 404
    assert [(line["host"], line["more_since_last_line"]) for line in lines] == [
        ("evil.example", 0),
        ("d\\x1b[31m." + "e" * 49 + "\N{HORIZONTAL ELLIPSIS}", 2),
    ]


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz", "/readyz/kafka"])
def test_metrics_and_probes_need_a_known_host_but_no_token(path: str) -> None:
    peer = client(is_loopback=False, token=TOKEN, host_names=("headroom.monitoring.svc",))
    for host, status in (("headroom.monitoring.svc:9644", 200), ("10.1.2.3:9644", 200), ("evil.example", 421)):
        assert peer.get(path, headers={"host": host}).status_code == status
    cross_site = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    assert peer.get(path, headers={"host": "10.1.2.3", **cross_site}).status_code == 403


@pytest.mark.parametrize(
    ("site", "mode", "status"),
    [
        ("cross-site", "no-cors", 403),
        ("cross-site", "cors", 403),
        ("same-site", "cors", 403),
        ("cross-site", "navigate", 200),
        ("same-origin", "cors", 200),
        ("none", "navigate", 200),
    ],
)
def test_cross_site_navigation_is_allowed_and_embedding_refused(site: str, mode: str, status: int) -> None:
    assert client().get("/", headers={"sec-fetch-site": site, "sec-fetch-mode": mode}).status_code == status


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"anyone:{password}".encode()).decode()


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"bearer {TOKEN}", 200),
        (basic(TOKEN), 200),
        (basic("wrong"), 401),
        ("Bearer wrong", 401),
        ("Bearer é", 401),
        ("Basic !!", 401),
        ("Digest x", 401),
        (TOKEN, 401),
        ("", 401),
    ],
)
def test_token_is_required_beyond_loopback(authorization: str, status: int) -> None:
    answer = client(token=TOKEN, is_loopback=False).get("/", headers={"authorization": authorization.encode()})
    assert answer.status_code == status
    assert client(token=TOKEN).get("/", headers={"authorization": authorization.encode()}).status_code == status


def test_access_beyond_loopback_without_token_or_proxy_is_refused() -> None:
    answer = client(is_loopback=False).get("/")
    assert (answer.status_code, "web.token" in answer.text) == (403, True)


@pytest.mark.parametrize(("peer", "status"), [("10.0.0.7", 200), ("10.0.1.7", 401), ("fe80::1", 401)])
def test_user_header_is_accepted_from_trusted_proxies_only(peer: str, status: int) -> None:
    config: dict[str, Any] = {"trusted_proxies": ("10.0.0.0/24",)}
    proxied = client(is_loopback=False, peer=peer, **config)
    assert proxied.get("/", headers={"x-forwarded-user": "alice"}).status_code == status
    assert proxied.get("/").status_code == 401


def test_every_response_has_a_strict_content_security_policy() -> None:
    for answer in (client().get("/"), client().get("/missing"), client().get("/", headers={"host": "evil.example"})):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"


OWNERS = parse_owners(b"owners: [{team: payments, user: alice}, {team: search, user: bob}]")
PAYMENTS = ClientScope(team="payments")
START_MS = 1_795_515_120_000  # the window_start of `row`


def row(**other: Any) -> dict[str, Any]:
    shown: dict[str, Any] = dict.fromkeys(COLUMNS, "") | {
        "cluster": "prod", "quota_key": "producer_byte_rate", "user": "alice", "client_id": "app", "broker_id": 1,
        "limit": 100.0, "implied_limit": None, "group_usage": 90.0, "throttle_ms": 0.0, "muted_ms": 0.0,
        "level": "warn", "window_start": "2026-11-24 10:12:00", "own_reason": "", "own_cause": "",
    }  # fmt: skip
    return {**shown, "culprit_user": "", "culprit_client_id": "", "bucket_user": "*", "unheard_of": "bob", **other}


@pytest.mark.parametrize(
    ("scope", "user", "client_id", "named"),
    [
        (PAYMENTS, "alice", "other", True),
        (PAYMENTS, "bob", "secret", False),
        (PAYMENTS, "bob", ", x takes 5 % of it", False),
        (PAYMENTS, "carol", "", False),
        (ClientScope(client_id_prefix="app-"), "bob", "app-2", True),
        (ClientScope(client_id_prefix="app-"), "bob", "ap", False),
        (ClientScope(user="alice"), "alicia", "app", False),
    ],
)
def test_reason_names_no_client_of_others(scope: ClientScope, user: str, client_id: str, named: bool) -> None:
    reason = f"at 90.0 % of its limit; 2 other clients share this quota, {client_id} takes 91 % of it"
    own = "at 90.0 % of its limit; 2 other clients share this quota, another client takes 91 % of it"
    culprit = {"culprit_user": user, "culprit_client_id": client_id}
    rows = [row(reason=reason, own_reason=own, **culprit), row(reason="names nobody", **culprit)]
    clients = document(scope, rows, [], OWNERS, START_MS)["clients"]
    assert [client["reason"] for client in clients] == [reason if named else own, "names nobody"]


def test_cause_names_no_neighbour() -> None:
    rows = [
        row(cause="neighbour secret takes 8 B/s", own_cause="another client takes 8 B/s"),
        row(cause="limit lowered"),
    ]
    clients = document(PAYMENTS, rows, [], OWNERS, START_MS)["clients"]
    assert [client["cause"] for client in clients] == ["another client takes 8 B/s", "limit lowered"]


def test_document_has_known_columns_only_and_the_longest_wait() -> None:
    rows = [row(muted_ms=5.0, throttle_ms=700.0), row(group_usage=110.0, level="throttled", broker_id=2)]
    windows = [{"cluster": "prod", "broker_id": 2, "quota_window_ms": 31_000.0}]
    found = document(PAYMENTS, rows, windows, OWNERS, START_MS + 70_000)
    assert (found["scope"], found["level"]) == ({"team": "payments"}, "throttled")
    assert [client["retry_after_ms"] for client in found["clients"]] == [700, 3_100]
    assert (found["retry_after_ms"], found["next_in_ms"]) == (3_100, 5_000)
    assert {name for client in found["clients"] for name in client} == {
        *COLUMNS, "retry_after_ms", "headroom_bytes_per_s",
    }  # fmt: skip
    implied = document(PAYMENTS, [row(limit=None, implied_limit=80.0)], [], OWNERS, START_MS + 500_000)
    assert (implied["clients"][0]["retry_after_ms"], implied["next_in_ms"]) == (1_375, 10_000)
    nobody = document(PAYMENTS, [], [], OWNERS, START_MS)
    assert (nobody["clients"], nobody["level"], nobody["retry_after_ms"]) == ([], None, 0)


def test_scope_without_anything_sees_nobody() -> None:
    assert not ClientScope().sees("alice", "app", "payments")
    assert Scopes([("t" * 16, PAYMENTS)]).of("t" * 16) == PAYMENTS
    assert Scopes([("t" * 16, PAYMENTS)]).of("") is None
