"""The pages: their routes, what each shows, and what a failure says. Renders templates/ with the rows of data.py."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from exporters.clickhouse.client import Row
from exporters.model import BYTE_KEYS
from exporters.printable import shortened
from headroom.web import usage_chart
from headroom.web.data import LEVELS, MOST_SEEN, Data
from headroom.web.overview_rows import question, question_of_rule, row_id, short_reason, sparkline
from headroom.web.own_view import own_routes
from headroom.web.parameters import BadRequestError, Paging, SparseLog, UnavailableError, query_of
from headroom.web.queries import GROUPS
from headroom.web.rendering import environment
from headroom.web.runbooks import blocks, runbook
from headroom.web.tiles import TREND_STEPS
from headroom.web.what_if import RANGES

_unreadable = SparseLog(__name__, longest=300)

_HERE = Path(__file__).parent
_AWAY = "HeadroomStoreDown"
_LONGEST = 300
# What to read about a tile that is in order.
_RUNBOOKS = {
    "brokers and gateway": "HeadroomDown",
    "pushes": "HeadroomRecordsDropped",
    "ingest lag": "HeadroomIngestLag",
    "spool": "HeadroomSpoolFilling",
    "store": "HeadroomStoreDown",
}

Page = Callable[[Request], Coroutine[Any, Any, tuple[str, dict[str, Any]]]]


def page_routes(data: Data) -> list[BaseRoute]:
    pages: dict[str, Page] = {
        "/": partial(_overview, data),
        "/clients/detail": partial(_client, data),
        "/clients/seen": partial(_seen, data),
        "/quotas": partial(_quotas, data),
        "/quotas/what-if": partial(_what_if, data),
        "/subscriptions": partial(_subscriptions, data),
        "/subscriptions/preview": partial(_preview, data),
    }
    without_store: dict[str, Page] = {
        "/status": partial(_status, data),
        "/runbooks/{name}": _runbook,
        "/freshness": _freshness,
    }

    return [
        *own_routes(data.own, _TEMPLATES.get_template("me.html")),
        *(Route(path, _endpoint(data, page), methods=["GET"]) for path, page in pages.items()),
        *(
            Route(path, _endpoint(data, page, needs_store=False), methods=["GET"])
            for path, page in without_store.items()
        ),
        Route("/clients", RedirectResponse("/"), methods=["GET"]),
        Route("/clients/", RedirectResponse("/"), methods=["GET"]),
        Mount("/static", StaticFiles(directory=_HERE / "static")),
        Route("/{path:path}", _endpoint(data, _missing, needs_store=False), methods=["GET"]),
    ]


def _endpoint(data: Data, page: Page, *, needs_store: bool = True) -> Callable[[Request], Awaitable[Response]]:
    """`needs_store`: the page does not wait for a store that does not answer."""

    async def respond(request: Request) -> Response:
        status_code, path, freshness = 200, request.url.path, None
        try:
            answer = data.watch.answer(page(request)) if needs_store else page(request)
            (template, values), freshness = await asyncio.gather(answer, data.watch.freshness())
        except BadRequestError as exc:
            status_code, template, values = 400, "error.html", _failure("That did not work", str(exc))
        except UnavailableError as exc:
            status_code, template, values = 503, "error.html", _failure("It cannot be answered now", str(exc), _AWAY)
        except ConnectionError as exc:
            _unreadable.warning("the store cannot be read for a page", error=str(exc))
            cause = f"The store cannot be read: {shortened(str(exc), _LONGEST)}"
            status_code, template, values = 503, "error.html", _failure("It cannot be answered now", cause, _AWAY)
        except HTTPException as exc:
            status_code, template, values = exc.status_code, "error.html", _failure("There is no such page", exc.detail)
        freshness = values.get("freshness") or freshness or await data.watch.freshness()
        text = _TEMPLATES.get_template(template).render({"path": path, **values, "freshness": freshness})
        return HTMLResponse(text, status_code)

    return respond


def _failure(heading: str, message: str, runbook: str = "") -> dict[str, str]:
    return {"heading": heading, "message": message, "runbook": runbook}


async def _freshness(_: Request) -> tuple[str, dict[str, Any]]:
    """The line of the header, which live.js asks for."""
    return "freshness.html", {}


async def _missing(_: Request) -> tuple[str, dict[str, Any]]:
    raise HTTPException(404, "Nothing is at this address.")


async def _runbook(request: Request) -> tuple[str, dict[str, Any]]:
    name = request.path_params["name"]
    text = runbook(name)
    if text is None:
        raise HTTPException(404, "There is no runbook of that name.")
    return "runbook.html", {"name": name, "blocks": list(blocks(text))}


async def _overview(data: Data, request: Request) -> tuple[str, dict[str, Any]]:
    query = {name: value for name, value in query_of(request).items() if value}
    page = Paging.of(query)
    parameters = {**query, **page.parameters}
    rows: list[Row] = []
    groups: list[Row] = []
    if "by" in query:
        (counts, clusters), (groups, total) = await asyncio.gather(data.summary(query), data.groups(parameters))
    else:
        (counts, clusters), rows = await asyncio.gather(data.summary(query), data.headroom(parameters))
        chosen = {level for level in query.get("level", "").split(",") if level} or LEVELS
        total = sum(counts[level] for level in chosen)
        for row, points in zip(rows, await data.sparklines(rows), strict=True):
            row |= {"spark": sparkline(points, row["limit"]), "short": short_reason(row), "question": question(row)}
            row["id"] = row_id(row, "cluster", "source", "quota_key", "user", "client_id")
    return "overview.html", {
        "rows": rows,
        "groups": [{**group, "id": row_id(group, "cluster", "name", "quota_key")} for group in groups],
        "counts": counts,
        "clusters": clusters,
        "given": query,
        "kept": {name: value for name, value in query.items() if name != "offset"},
        "levels": LEVELS,
        "groupings": GROUPS,
        "page": page.of_rows(len(rows) + len(groups), total),
    }


async def _seen(data: Data, request: Request) -> tuple[str, dict[str, Any]]:
    """The clients of the last week that a search finds. It may take seconds: the overview asks and does not wait."""
    query = {name: value for name, value in query_of(request).items() if value}
    seen: list[Row] = []
    try:
        seen, why_none = await data.seen(query), "No other client of the last week has it in its user or client id."
    except ConnectionError as exc:
        _unreadable.warning("the clients of the last week cannot be read", error=str(exc))
        why_none = "The clients of the last week could not be searched in time; search again in a minute."
    return "seen.html", {
        "seen": [{**row, "id": row_id(row, "cluster", "user", "client_id")} for row in seen],
        "why_none": why_none,
        "most_seen": MOST_SEEN,
        "given": query,
    }


async def _client(data: Data, request: Request) -> tuple[str, dict[str, Any]]:
    query = query_of(request)
    client = await data.client(query)
    for quota in client["quotas"]:
        quota["question"] = question(quota)
    ranges = usage_chart.RANGES
    range_name = query.get("range", "")
    if range_name not in ranges:  # the shortest that holds the last usage
        recorded = [row["last_s"] for row in client["stopped"]] if not client["quotas"] else []
        age_s = time.time() - max(recorded) if recorded else 0.0
        range_name = next((name for name, seconds in ranges.items() if seconds > 1.2 * age_s), "30d")
    return "client.html", {"client": client, "ranges": ranges, "range": range_name}


async def _quotas(data: Data, request: Request) -> tuple[str, dict[str, Any]]:
    query = {name: value for name, value in query_of(request).items() if value}
    page = Paging.of(query)
    rules, changes, suggestions = await asyncio.gather(
        data.quotas(query), data.quota_changes(query), data.suggestions(query)
    )
    rows = [
        {**rule, "id": row_id(rule, "cluster", "entity", "quota_key"), "question": question_of_rule(rule)}
        for rule in page.cut(rules)
    ]
    return "quotas.html", {
        "rules": rows,
        "clusters": {rule["cluster"] for rule in rules},
        "page": page.of_rows(len(rows), len(rules)),
        "changes": changes,
        "given": query,
        "not_understood": (data.status()["cluster"] or {}).get("not_understood", []),
        "suggestions": suggestions,
        **_form({}),
    }


async def _what_if(data: Data, request: Request) -> tuple[str, dict[str, Any]]:
    """The form with the answer below it; with an error in its place."""
    query = query_of(request)
    try:
        answer, error = await data.what_if(query), ""
    except (BadRequestError, UnavailableError) as exc:
        answer, error = None, str(exc)
    return "what_if.html", {"answer": answer, "error": error, **_form(query)}


def _form(query: Mapping[str, str]) -> dict[str, Any]:
    return {"asked": query, "quota_keys": BYTE_KEYS, "ranges": RANGES}


async def _subscriptions(data: Data, request: Request) -> tuple[str, dict[str, Any]]:
    """Subscriptions, and who pushes; each has pages of its own."""
    query = {name: value for name, value in query_of(request).items() if value}
    page, pushing = Paging.of(query), Paging.of(query, "clients_offset")
    clients, count = await asyncio.gather(data.clients({**query, **pushing.parameters}), data.client_count(query))
    text = query.get("q", "").strip().lower()
    matching = [
        subscription
        for subscription in data.subscriptions()
        if text in " ".join(map(str, subscription.values())).lower()
    ]
    return "subscriptions.html", {
        "subscriptions": page.cut(matching),
        "page": page.of_rows(len(page.cut(matching)), len(matching)),
        "clients": clients,
        "pushing": pushing.of_rows(len(clients), count),
        "given": query,
        "asked": {},
    }


async def _preview(data: Data, request: Request) -> tuple[str, dict[str, Any]]:
    """The form with the answer below it; with an error in its place."""
    query = query_of(request)
    try:
        preview, error = await data.subscription_preview(query), ""
    except BadRequestError as exc:
        preview, error = None, str(exc)
    return "subscription_preview.html", {"preview": preview, "error": error, "asked": query}


async def _status(data: Data, _: Request) -> tuple[str, dict[str, Any]]:
    """Of Headroom itself, also while the store is away."""
    try:
        jobs = await data.watch.answer(data.jobs())
    except ConnectionError:
        jobs = []
    status, freshness = data.status(), await data.watch.freshness()
    tiles = [{**tile, "runbook": tile["runbook"] or _RUNBOOKS.get(tile["name"], "")} for tile in status["tiles"]]
    for tile in tiles:
        values = tile["trend"]["values"]  # of an hour at most, now at the right edge
        tile["spark"] = sparkline(list(enumerate(values, start=TREND_STEPS - len(values))), None)
        if tile["name"] == "store" and freshness.error:  # the storage process finds out later
            tile |= {"level": "critical", "text": f"does not answer: {freshness.error}"}
    return "status.html", {"status": status, "tiles": tiles, "jobs": jobs, "freshness": freshness}


def fan(forecast: Mapping[str, Any]) -> dict[str, str]:
    """A forecast as SVG points, 100 by 40: `band` from p10 to p90, `median`, `limit`: the height of utilisation 1."""
    most = max([1.2, *forecast["p90"]])

    def points(values: list[float], *, reverse: bool = False) -> str:
        step = 100 / max(len(values) - 1, 1)
        corners = [f"{place * step:.1f},{40 - value / most * 40:.1f}" for place, value in enumerate(values)]
        return " ".join(reversed(corners) if reverse else corners)

    band = f"{points(forecast['p90'])} {points(forecast['p10'], reverse=True)}"
    return {"band": band, "median": points(forecast["p50"]), "limit": f"{40 - 40 / most:.1f}"}


_TEMPLATES = environment()
_TEMPLATES.globals |= {"fan": fan}
