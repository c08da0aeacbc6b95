"""Renders templates/ with the rows of data.py. jinja2 escapes every value."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import structlog
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from exporters.amounts import duration_text, rate_text, share_text
from exporters.printable import printable
from headroom.web.data import LEVELS, BadRequestError, Data, spark_key

log = structlog.get_logger(__name__)

_HERE = Path(__file__).parent
_PAGE_ROWS = 100
_SPARK_SLOTS, _SPARK_HEIGHT = 90, 24

Page = Callable[[Request], Awaitable[tuple[str, dict[str, Any]]]]


def page_routes(data: Data) -> list[BaseRoute]:
    """The pages and their static files."""
    pages: dict[str, Page] = {
        "/": partial(_overview, data),
        "/clients/detail": partial(_client, data),
        "/quotas": partial(_quotas, data),
        "/subscriptions": partial(_subscriptions, data),
        "/status": partial(_status, data),
    }

    async def clients(_: Request) -> Response:
        return RedirectResponse("/")

    return [
        *(Route(path, _endpoint(page), methods=["GET"]) for path, page in pages.items()),
        Route("/clients", clients, methods=["GET"]),
        Route("/clients/", clients, methods=["GET"]),
        Mount("/static", StaticFiles(directory=_HERE / "static")),
    ]


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"rate": rate_text, "share": share_text, "duration": duration_text, "printable": printable}
    environment.globals |= {"query": urlencode, "sparkline": sparkline}
    return environment


def _endpoint(page: Page) -> Callable[[Request], Awaitable[Response]]:
    async def respond(request: Request) -> Response:
        try:
            template, values = await page(request)
        except BadRequestError as exc:
            return _html("error.html", {"path": request.url.path, "message": str(exc)}, 400)
        except ConnectionError as exc:
            log.warning("the store cannot be read for a page", error=str(exc))
            return _html("error.html", {"path": request.url.path, "message": "The store cannot be read."}, 503)
        return _html(template, {"path": request.url.path, **values})

    return respond


def _html(template: str, values: Mapping[str, Any], status_code: int = 200) -> HTMLResponse:
    return HTMLResponse(_TEMPLATES.get_template(template).render(values), status_code)


async def _overview(data: Data, request: Request) -> tuple[str, dict[str, Any]]:
    given = {name: value for name, value in request.query_params.items() if value}
    rows, counts = await asyncio.gather(data.headroom({"limit": str(_PAGE_ROWS), **given}), data.level_counts(given))
    sparks = await data.sparklines(rows)
    for row in rows:
        row["spark"] = sparks.get(spark_key(row), [])
    return "overview.html", {"rows": rows, "counts": counts, "given": given, "levels": LEVELS, "page_rows": _PAGE_ROWS}


async def _client(data: Data, request: Request) -> tuple[str, dict[str, Any]]:
    return "client.html", {"client": await data.client(request.query_params)}


async def _quotas(data: Data, request: Request) -> tuple[str, dict[str, Any]]:
    given = dict(request.query_params)
    return "quotas.html", {"rules": await data.quotas(given), "changes": await data.quota_changes(given)}


async def _subscriptions(data: Data, _: Request) -> tuple[str, dict[str, Any]]:
    return "subscriptions.html", {
        "subscriptions": data.subscriptions(),
        "clients": await data.clients({"limit": "200"}),
    }


async def _status(data: Data, _: Request) -> tuple[str, dict[str, Any]]:
    try:
        jobs = await data.jobs()
    except ConnectionError:
        jobs = []
    return "status.html", {"status": data.status(), "jobs": jobs}


def sparkline(points: list[tuple[int, float]], limit: float | None) -> str:
    """The `points` attribute of an SVG polyline, 90 by 24; the upper edge is the limit or the highest rate."""
    most = max([limit or 0.0, *(rate for _, rate in points), 1.0])
    return " ".join(
        f"{slot},{_SPARK_HEIGHT - rate / most * (_SPARK_HEIGHT - 2):.1f}"
        for slot, rate in points
        if 0 <= slot <= _SPARK_SLOTS
    )


_TEMPLATES = _environment()
