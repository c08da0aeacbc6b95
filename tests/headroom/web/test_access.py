"""Who may read the pages: Host headers, tokens, proxies, requests from other sites."""

from __future__ import annotations

import base64
from typing import Any

import pytest
import structlog
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from headroom.config.settings import WebConfig
from headroom.web.access import OPEN_PATHS, AccessControl

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
