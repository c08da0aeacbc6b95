"""Access control of the pages (Host header, token, trusted proxy), and the headers of every response.

A page of another site could read a service on loopback by DNS rebinding, which shows in the Host header; therefore only
configured names, localhost and IP addresses are accepted, at every path. The pages change nothing, so cross-site
request forgery is not possible; embedding and fetching by other sites is nevertheless refused, by Sec-Fetch-Site.
"""

import base64
import hmac
import ipaddress
import time
from collections.abc import Callable
from contextlib import suppress

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headroom.config.settings import WebConfig
from headroom.web.own_view import ME, ME_PAGE, OF_REQUEST, REACHED, Scopes
from headroom.web.parameters import SparseLog
from telemetry.gateway.networks import is_in

_ONLY_ITS_OWN = f"this token reaches only {ME} and {ME_PAGE}\n"
OPEN_PATHS = frozenset({"/metrics", "/healthz", "/readyz", "/readyz/kafka"})  # these need no token

_SECURITY_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


class AccessControl:
    """ASGI middleware around the pages. `token` may be None; `is_loopback`: whether the server listens on loopback.
    `scopes`: further tokens, each of which reaches its own clients only; with them everybody needs a token.

    `clock` gives monotonic seconds.
    """

    def __init__(
        self,
        app: ASGIApp,
        config: WebConfig,
        token: str | None,
        *,
        is_loopback: bool,
        scopes: Scopes = Scopes(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._config = config
        self._token = token
        self._scopes = scopes
        self._is_loopback = is_loopback
        self._names = {"localhost", *(name.lower() for name in config.host_names)}
        # Shows operators of a reverse proxy which name to configure.
        self._refused = SparseLog(__name__, clock=clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refusal = self._refusal(Headers(scope=scope), scope)
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refusal(self, headers: Headers, scope: Scope) -> PlainTextResponse | None:
        hosts = headers.getlist("host")
        is_check = not hosts and scope["path"] in OPEN_PATHS  # HAProxy's, in HTTP/1.0; browsers always name a host
        if not is_check and not self._is_our_host(hosts):
            self._refused.warning("refused a Host header, see web.host_names", host=", ".join(hosts))
            return PlainTextResponse("this Host header is not accepted: see web.host_names\n", 421)
        cross_site = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        if cross_site and headers.get("sec-fetch-mode") != "navigate":
            origin = headers.get("origin", "")
            self._refused.warning("refused a request from another site", path=scope["path"], origin=origin)
            return PlainTextResponse("requests from other sites are not answered\n", 403)
        shown = _shown(headers)
        if shown and (client_scope := self._scopes.of(shown)) is not None:  # also through a trusted proxy
            scope[OF_REQUEST] = client_scope
            return None if scope["path"] in REACHED else PlainTextResponse(_ONLY_ITS_OWN, 403)
        if scope["path"] in OPEN_PATHS or (self._is_loopback and self._token is None and not self._scopes):
            return None
        is_token = self._token is not None and hmac.compare_digest(shown.encode(), self._token.encode())
        if is_token or self._comes_through_proxy(headers, scope):
            return None
        if self._token is None and not self._config.trusted_proxies:
            return PlainTextResponse("not on loopback: set web.token or web.trusted_proxies to read the pages\n", 403)
        return PlainTextResponse(
            "a token is needed\n", 401, {"www-authenticate": 'Basic realm="headroom", charset="UTF-8"'}
        )

    def _is_our_host(self, hosts: list[str]) -> bool:
        if len(hosts) != 1:
            return False
        host = hosts[0].lower()
        name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
        with suppress(ValueError):
            ipaddress.ip_address(name)
            return True
        return name in self._names

    def _comes_through_proxy(self, headers: Headers, scope: Scope) -> bool:
        client = scope.get("client")
        if not client or not headers.get(self._config.user_header):
            return False
        with suppress(ValueError):
            return is_in(client[0], self._config.trusted_proxies)
        return False


def _shown(headers: Headers) -> str:
    """A bearer token, or the token as the password of any user, for browsers; empty without one."""
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip()
    if scheme.lower() == "basic":
        with suppress(ValueError):  # neither base64 nor UTF-8
            return base64.b64decode(credentials.strip(), validate=True).decode().partition(":")[2]
    return ""
