"""The HTTP endpoint: /metrics, /healthz, /readyz, and the routes of headroom.web."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import uvicorn
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from headroom.server.metrics import SelfMetrics


def web_app(
    self_metrics: SelfMetrics, is_ready: Callable[[], str | None], pages: Sequence[BaseRoute] = ()
) -> Starlette:
    """`is_ready` returns None, or the reason why not. `pages`: further routes."""

    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        snapshot = self_metrics.snapshot()  # in the loop's thread; formatting thousands of series takes another one
        text = await asyncio.to_thread(encode, snapshot)
        return Response(text, headers={"content-type": content_type})

    def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    def readyz(_: Request) -> Response:
        reason = is_ready()
        return PlainTextResponse(f"{reason or 'ready'}\n", status_code=503 if reason else 200)

    own = [Route("/metrics", metrics), Route("/healthz", healthz), Route("/readyz", readyz)]
    return Starlette(routes=[*own, *pages])


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # signals are handled in app.py


class HttpServer:
    """uvicorn on an already bound socket, in the running loop."""

    def __init__(self, app: ASGIApp, host: str, port: int, options: Mapping[str, Any] | None = None) -> None:
        """`options`: further ones of uvicorn.Config, such as TLS and limits."""
        self._options = options or {}
        self._app = app
        self._host = host
        self._port = port

    async def start(self) -> tuple[str, int]:
        """Raises OSError when the port is in use."""
        listener = socket.create_server((self._host, self._port), family=_family(self._host))
        config = uvicorn.Config(self._app, log_config=None, access_log=False, lifespan="off", **self._options)
        self._server = _Server(config)
        self._task = asyncio.get_running_loop().create_task(self._server.serve(sockets=[listener]))
        return self._host, listener.getsockname()[1]

    async def stop(self) -> None:
        self._server.should_exit = True
        await self._task


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
