"""The HTTP endpoint: /metrics, the probes, and the routes of headroom.web."""

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import uvicorn
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from exporters.listening_socket import end_of, listening_socket
from headroom.daemon_thread import in_daemon_thread
from headroom.logs import thin_out
from headroom.server.health import Health
from headroom.server.metrics import Snapshot
from headroom.server.process_limits import HTTP_CONNECTIONS
from telemetry.gateway.client_connection import TimedConnection
from telemetry.gateway.connection_limits import Admission, AdmissionLimits
from telemetry.gateway.listener import HandshakeServer

_PEER_S = 75.0  # to send a request, or to read a response; load balancers reuse what was idle for 60 s
_HANDSHAKE_S = 5.0  # for TLS; HandshakeServer adds five seconds
_CHECK_S = 5.0
_ENCODERS = 4
_turns = itertools.count()  # times may be equal


def web_app(snapshot: Callable[[], Snapshot], health: Health, pages: Sequence[BaseRoute] = ()) -> Starlette:
    """`pages`: further routes. `/readyz?verbose` says what is late or lost, too.

    `/readyz` is for people and alerts. `/readyz/kafka` is for what sends clients here, a Kubernetes service or a load
    balancer: it looks at nothing that forwarding does not need, least of all the store.
    """

    encoders = asyncio.Semaphore(_ENCODERS)

    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        async with encoders:
            text = await in_daemon_thread(partial(encode, snapshot()))  # thousands of series take a while
        return Response(text, headers={"content-type": content_type})

    def readyz(request: Request) -> Response:
        checks = health.report()
        lines = checks.lines() if "verbose" in request.query_params else [checks.reason or "ready"]
        return PlainTextResponse("\n".join(lines) + "\n", status_code=503 if checks.reason else 200)

    def readyz_kafka(_: Request) -> Response:
        reason = health.not_serving_reason
        return PlainTextResponse(f"{reason or 'ready'}\n", status_code=503 if reason else 200)

    own = {"/metrics": metrics, "/healthz": _healthz, "/readyz": readyz, "/readyz/kafka": readyz_kafka}
    return Starlette(routes=[*(Route(path, answer) for path, answer in own.items()), *pages])


def starting_app(reason: Callable[[], str]) -> Starlette:
    """Before `web_app` can answer: the process is alive, and everything else says why there is nothing else. /metrics
    fails, too, so that the alert of a Headroom that is down begins."""

    def not_yet(request: Request) -> Response:
        if request.url.path.startswith("/api/"):
            return JSONResponse({"error": reason()}, status_code=503)
        return PlainTextResponse(f"{reason()}\n", status_code=503)

    return Starlette(routes=[Route("/healthz", _healthz), Route("/{path:path}", not_yet)])


def _healthz(_: Request) -> Response:
    return PlainTextResponse("ok\n")


class Replaceable:
    """Passes every request on to `app`, which changes when Headroom has started."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


class LimitedConnection(H11Protocol):
    """Closes a connection whose peer takes `peer_s` to send a request, or to read a response. At more than
    `max_connections`, the one that has waited longest for its peer is closed: idle connections cannot keep out a caller
    that sends a request."""

    def __init__(self, max_connections: int, peer_s: float, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._max_connections = max_connections
        self._peer_s = peer_s
        self._waiting_since_s: float | None = None  # None: the application is busy with a request
        self._waited_for: object = None  # the request after which it waits
        self._timer: asyncio.TimerHandle | None = None
        self._turn = next(_turns)  # lower: its last response, or its opening, is longer ago

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        super().connection_made(transport)
        self.client = self.client and end_of(self.client)
        self._check()
        if len(self.connections) > self._max_connections:
            waiting = [
                connection
                for connection in self.connections
                if isinstance(connection, LimitedConnection) and connection.waits_for_peer()
            ]
            # This one, if the application is busy with all others.
            longest = min(waiting, key=lambda connection: connection._turn, default=self)
            longest.transport.abort()
            self.connections.discard(longest)  # at once, so that the next one does not choose it again

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._turn = next(_turns)
        super().on_response_complete()

    def waits_for_peer(self) -> bool:
        """Whether the peer has to send or to read before anything happens here."""
        cycle = self.cycle
        return cycle is None or cycle.response_complete or cycle.more_body or self.flow.write_paused

    def _check(self) -> None:
        """Aborts a connection that has waited too long. A peer that reads a little at a time has to hurry, too."""
        now_s = self.loop.time()
        if not self.waits_for_peer():
            self._waiting_since_s = None
        elif self._waiting_since_s is None or self._waited_for is not self.cycle:
            self._waiting_since_s, self._waited_for = now_s, self.cycle
        elif now_s - self._waiting_since_s >= self._peer_s:
            self.transport.abort()
            return
        self._timer = self.loop.call_later(_CHECK_S, self._check)


class HttpServer(uvicorn.Server):
    """On a socket that `start` binds, in the running loop."""

    def __init__(
        self,
        app: ASGIApp,
        host: str,
        port: int,
        options: Mapping[str, Any] | None = None,
        *,
        max_connections: int = HTTP_CONNECTIONS,
        peer_s: float = _PEER_S,
        grace_s: float = 5.0,
    ) -> None:
        """`options`: further ones of uvicorn.Config, such as TLS. `peer_s`: time of a peer to send a request, or to
        read a response. `stop` waits at most `grace_s` for requests in progress and for peers that read slowly."""
        connection: Any = partial(LimitedConnection, max_connections, peer_s)  # called as the class is
        super().__init__(
            uvicorn.Config(
                app,
                http=connection,
                ws="none",
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_keep_alive=max(1, round(peer_s)),
                proxy_headers=False,  # whom to believe is AccessControl's decision, and the address is who pays
                timeout_graceful_shutdown=max(1, round(grace_s)),
                **options or {},
            )
        )
        self._host = host
        self._port = port
        # One address cannot take all, so that a flood of handshakes does not keep out callers from other addresses.
        self._handshakes = AdmissionLimits(
            max_connections=max_connections,
            max_connections_per_address=max(1, max_connections * 3 // 4),
            handshake_timeout_s=_HANDSHAKE_S,
        )

    async def start(self) -> tuple[str, int]:
        """Raises OSError when the port is in use."""
        listener = listening_socket(self._host, self._port)
        listener.setblocking(False)
        thin_out("uvicorn.error")  # a line for each invalid request
        self._task = asyncio.get_running_loop().create_task(self.serve(sockets=[listener]))
        return self._host, listener.getsockname()[1]

    async def stop(self) -> None:
        self.should_exit = True
        await self._task

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """With TLS by a server that limits handshakes in progress, which uvicorn's own does not see."""
        context = self.config.ssl
        if context is None or sockets is None:
            await super().startup(sockets)
            return
        await self.lifespan.startup()
        admission: Admission[TimedConnection] = Admission(self._handshakes)
        self.servers = [HandshakeServer(listening, context, admission, self._connection) for listening in sockets]  # type: ignore[misc] # closed only
        self.started = True

    def _connection(self) -> asyncio.Protocol:
        make: Any = self.config.http_protocol_class
        protocol: asyncio.Protocol = make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # signals are handled in app.py
