"""`/api/v1/me` and `/me`: the document of a token's scope, as JSON and as a page that works without scripts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import orjson
from jinja2 import Template
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from exporters.clickhouse.client import Row
from headroom.web.own.scopes import ME, ME_PAGE, OF_REQUEST, ClientScope
from headroom.web.parameters import BadRequestError, Given
from headroom.web.sparse_log import SparseLog

Own = Callable[[ClientScope, Given], Awaitable[Row]]

_AT_ONCE: Final = 2  # applications together; the other queries that run at once are the operators'
_PATIENCE_S: Final = 10.0
_NO_SCOPE: Final = "this is for the tokens of web.tokens, which see some clients only; /api/v1/headroom has all clients"
_unreadable = SparseLog(__name__, longest=300)


def own_routes(own: Own, page: Template) -> list[Route]:
    """GET only. 400 for invalid parameters and for who sees all clients, 503 while the store cannot be read."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def ask(request: Request) -> tuple[int, Row]:
        try:
            scope: ClientScope | None = request.scope.get(OF_REQUEST)
            if scope is None:
                raise BadRequestError(_NO_SCOPE)
            async with asyncio.timeout(_PATIENCE_S), turns:
                return 200, await own(scope, request.query_params)
        except BadRequestError as exc:
            return 400, {"error": str(exc)}
        except (ConnectionError, TimeoutError) as exc:
            error = str(exc) or "too many applications ask"
            _unreadable.warning("the store cannot be read for an application", error=error)
            return 503, {"error": "it cannot be answered now, ask again later"}  # the cause names parts of Headroom

    async def me(request: Request) -> Response:
        status, document = await ask(request)
        return Response(orjson.dumps(document), status, media_type="application/json")

    async def me_page(request: Request) -> Response:
        status, document = await ask(request)
        return HTMLResponse(page.render(document=document), status)

    return [Route(ME, me, methods=["GET"]), Route(ME_PAGE, me_page, methods=["GET"])]
