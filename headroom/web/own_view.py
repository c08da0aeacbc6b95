"""An application's own view: what a token of `web.tokens` may see, at `/api/v1/me` and `/me`, and nowhere else.

The clients of its scope in the newest minute, and by what they can pace themselves. Of other clients it has only what
the quota that they share tells: how many they are, and what all use together.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

import orjson
from jinja2 import Template
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from exporters.clickhouse.client import Row
from headroom.web.parameters import BadRequestError, Given, SparseLog, query_of
from quota_metrics.config.owners import Owners
from quota_metrics.verdict.pacing import BucketMinute, pace
from quota_metrics.verdict.thresholds import LEVELS
from quota_metrics.verdict.window import WINDOW_S
from quota_metrics.windows import QuotaWindow

ME: Final = "/api/v1/me"
ME_PAGE: Final = "/me"
REACHED: Final = frozenset({ME, ME_PAGE, "/static/headroom.css", "/static/me.js"})
OF_REQUEST: Final = "headroom.scope"  # whose request it is, in the ASGI scope
# A new column is not shown before somebody has seen that it says nothing of other clients.
COLUMNS: Final = (
    "cluster", "source", "quota_key", "user", "client_id", "team", "broker_id", "level", "reason", "impact",
    "impact_reason", "cause", "limit", "limit_known", "implied_limit", "matched_entity", "usage", "usage_p95",
    "utilization", "utilization_p95", "group_usage", "group_p95", "shared_with", "throttle_ms", "muted_ms",
    "bytes", "instances", "software_name", "software_version", "window_start", "window_s",
)  # fmt: skip
_EVERY_MS: Final = 10_000  # between two computations, unless `levels.every_ms` is another
_READY_MS: Final = 5_000  # after their end, until the 60 seconds can be read
_LATE_MS: Final = 10_000  # between two questions for one that is late
_AT_ONCE: Final = 2  # applications together; the other queries that run at once are the operators'
_PATIENCE_S: Final = 10.0
_NO_SCOPE: Final = "this is for the tokens of web.tokens, which see some clients only; /api/v1/headroom has all clients"
_unreadable = SparseLog(__name__, longest=300)


class ClientScope(NamedTuple):
    """The clients for which all that is not empty holds."""

    user: str = ""
    client_id_prefix: str = ""
    team: str = ""

    def sees(self, user: str, client_id: str, team: str) -> bool:
        return (
            any(self)
            and self.user in ("", user)
            and client_id.startswith(self.client_id_prefix)
            and self.team in ("", team)
        )


class Scopes:
    """The scope of each token. Tokens are kept and looked up as hashes, so that the time tells nothing of them."""

    def __init__(self, scopes: Iterable[tuple[str, ClientScope]] = ()) -> None:
        self._scopes = {_hash(token): scope for token, scope in scopes}

    def __bool__(self) -> bool:
        return bool(self._scopes)

    def of(self, token: str) -> ClientScope | None:
        """None: it is no token with a scope."""
        return self._scopes.get(_hash(token))


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


def document(scope: ClientScope, rows: Sequence[Row], windows: Sequence[Row], owners: Owners, now_ms: int) -> Row:
    """`rows`: of queries.OWN; `windows`: of queries.QUOTA_WINDOWS; the worst client first."""
    window_ms = {(row["cluster"], row["broker_id"]): int(row["quota_window_ms"]) for row in windows}
    clients = []
    for row in rows:
        limit = row["limit"] if row["limit"] is not None else row["implied_limit"]
        minute = BucketMinute(row["quota_key"], limit, row["group_usage"], row["throttle_ms"], row["muted_ms"])
        length_ms = window_ms.get((row["cluster"], row["broker_id"])) or QuotaWindow().length_ms
        # Without the name of a client of others, which may take most of the shared quota.
        user, client_id = row["culprit_user"], row["culprit_client_id"]
        is_seen = scope.sees(user, client_id, owners.owner(user, client_id).team)
        reason = row["reason"] if is_seen or not row["own_reason"] else row["own_reason"]
        columns = {name: row[name] for name in COLUMNS} | {"reason": reason, "cause": row["own_cause"] or row["cause"]}
        clients.append({**columns, **pace(minute, length_ms)._asdict()})
    due_ms = 0  # when there is something newer to read
    if rows:
        start = datetime.fromisoformat(rows[0]["window_start"]).replace(tzinfo=UTC)
        due_ms = int(start.timestamp() * 1000) + 1000 * WINDOW_S + _EVERY_MS + _READY_MS
    return {
        "scope": {name: value for name, value in scope._asdict().items() if value},
        "window_start": clients[0]["window_start"] if clients else None,
        "level": max((client["level"] for client in clients), key=LEVELS.index, default=None),
        "retry_after_ms": max((client["retry_after_ms"] for client in clients), default=0),
        "next_in_ms": due_ms - now_ms if due_ms > now_ms else _LATE_MS,
        "clients": clients,
    }


def own_routes(own: Callable[[ClientScope, Given], Awaitable[Row]], page: Template) -> list[Route]:
    """GET only. 400 for invalid parameters and for who sees all clients, 503 while the store cannot be read."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def ask(request: Request) -> tuple[int, Row]:
        try:
            scope: ClientScope | None = request.scope.get(OF_REQUEST)
            if scope is None:
                raise BadRequestError(_NO_SCOPE)
            async with asyncio.timeout(_PATIENCE_S), turns:
                return 200, await own(scope, query_of(request))
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
