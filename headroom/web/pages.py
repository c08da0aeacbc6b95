"""Renders templates/ with the rows of data.py. jinja2 escapes every value."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from exporters.printable import printable
from headroom.web.data import LEVELS, Data, spark_key
from headroom.web.parameters import BadRequestError, UnavailableError
from headroom.web.sparse_log import SparseLog
from headroom.web.what_if import RANGES
from quota_metrics.amounts import duration_text, rate_text, share_text
from quota_metrics.simulation.outcomes import KEYS

_unreadable = SparseLog(__name__, longest=300)

_HERE = Path(__file__).parent
_PAGE_ROWS = 100
_SPARK_MINUTE, _SPARK_HEIGHT = 6, 24  # 15 minutes are 90 wide

Page = Callable[[Request], Awaitable[tuple[str, dict[str, Any]]]]


def page_routes(data: Data) -> list[BaseRoute]:
    """The pages and their static files."""
    pages: dict[str, Page] = {
        "/": partial(_overview, data),
        "/clients/detail": partial(_client, data),
        "/quotas": partial(_quotas, data),
        "/quotas/what-if": partial(_what_if, data),
        "/subscriptions": partial(_subscriptions, data),
        "/subscriptions/preview": partial(_preview, data),
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
    environment.globals |= {"query": urlencode, "sparkline": sparkline, "fan": fan}
    return environment


def _endpoint(page: Page) -> Callable[[Request], Awaitable[Response]]:
    async def respond(request: Request) -> Response:
        try:
            template, values = await page(request)
        except BadRequestError as exc:
            return _html("error.html", {"path": request.url.path, "message": str(exc)}, 400)
        except UnavailableError as exc:
            return _html("error.html", {"path": request.url.path, "message": str(exc)}, 503)
        except ConnectionError as exc:
            _unreadable.warning("the store cannot be read for a page", error=str(exc))
            return _html("error.html", {"path": request.url.path, "message": "The store cannot be read."}, 503)
        return _html(template, {"path": request.url.path, **values})

    return respond


def _html(template: str, values: Mapping[str, Any], status_code: int = 200) -> HTMLResponse:
    return HTMLResponse(_TEMPLATES.get_template(template).render(values), status_code)


async def _overview(data: Data, request: Request) -> tuple[str, dict[str, Any]]:
    given = {name: value for name, value in request.query_params.items() if value}
    rows, counts = await data.overview({"limit": str(_PAGE_ROWS), **given})
    sparks = await data.sparklines(rows)
    for row in rows:
        row["spark"] = sparks.get(spark_key(row), [])
    return "overview.html", {"rows": rows, "counts": counts, "given": given, "levels": LEVELS, "page_rows": _PAGE_ROWS}


async def _client(data: Data, request: Request) -> tuple[str, dict[str, Any]]:
    return "client.html", {"client": await data.client(request.query_params)}


async def _quotas(data: Data, request: Request) -> tuple[str, dict[str, Any]]:
    given = dict(request.query_params)
    rules, changes = await asyncio.gather(data.quotas(given), data.quota_changes(given))
    return "quotas.html", {"rules": rules, "changes": changes, **_form({})}


async def _what_if(data: Data, request: Request) -> tuple[str, dict[str, Any]]:
    """The form with the answer below it; with an error in its place."""
    given = dict(request.query_params)
    try:
        answer, error = await data.what_if(given), ""
    except (BadRequestError, UnavailableError) as exc:
        answer, error = None, str(exc)
    return "what_if.html", {"answer": answer, "error": error, **_form(given)}


def _form(given: Mapping[str, str]) -> dict[str, Any]:
    return {"asked": given, "quota_keys": KEYS, "ranges": RANGES}


async def _subscriptions(data: Data, _: Request) -> tuple[str, dict[str, Any]]:
    return "subscriptions.html", {
        "subscriptions": data.subscriptions(),
        "clients": await data.clients({"limit": "200"}),
        "asked": {},
    }


async def _preview(data: Data, request: Request) -> tuple[str, dict[str, Any]]:
    """The form with the answer below it; with an error in its place."""
    given = dict(request.query_params)
    try:
        preview, error = await data.subscription_preview(given), ""
    except BadRequestError as exc:
        preview, error = None, str(exc)
    return "subscription_preview.html", {"preview": preview, "error": error, "asked": given}


async def _status(data: Data, _: Request) -> tuple[str, dict[str, Any]]:
    try:
        jobs = await data.jobs()
    except ConnectionError:
        jobs = []
    return "status.html", {"status": data.status(), "jobs": jobs}


def sparkline(points: list[tuple[int, float]], limit: float | None) -> str:
    """The `points` attribute of an SVG polyline, 90 by 24, with a step for each minute; the upper edge is the limit or
    the highest rate."""
    most = max([limit or 0.0, *(rate for _, rate in points), 1.0])
    steps = []
    for minute, rate in points:
        left, top = minute * _SPARK_MINUTE, _SPARK_HEIGHT - rate / most * (_SPARK_HEIGHT - 2)
        steps.append(f"{left},{top:.1f} {left + _SPARK_MINUTE},{top:.1f}")
    return " ".join(steps)


def fan(forecast: Mapping[str, Any]) -> dict[str, str]:
    """A forecast as SVG points, 100 by 40: `band` from p10 to p90, `median`, `limit`: the height of utilisation 1."""
    most = max([1.2, *forecast["p90"]])

    def points(values: list[float], *, reverse: bool = False) -> str:
        step = 100 / max(len(values) - 1, 1)
        found = [f"{place * step:.1f},{40 - value / most * 40:.1f}" for place, value in enumerate(values)]
        return " ".join(reversed(found) if reverse else found)

    band = f"{points(forecast['p90'])} {points(forecast['p10'], reverse=True)}"
    return {"band": band, "median": points(forecast["p50"]), "limit": f"{40 - 40 / most:.1f}"}


_TEMPLATES = _environment()
