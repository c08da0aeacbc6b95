"""`/api/v1/...`: the data of the pages as JSON, with the column names of the SQL views (docs/api.md)."""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from exporters.printable import shortened
from headroom.web.data import Data
from headroom.web.parameters import BadRequestError, SparseLog, UnavailableError, query_of

_unreadable = SparseLog(__name__, longest=300)


def api_routes(data: Data) -> list[Route]:
    """GET only. 400 for invalid parameters, 503 while the store cannot be read."""

    async def freshness(_: Any) -> Any:
        return (await data.watch.freshness())._asdict()

    answers: dict[str, Callable[[Any], Any]] = {
        "headroom": data.headroom,
        "usage": data.usage,
        "clients": data.clients,
        "client": data.client,
        "gateway-share": data.gateway_share,
        "quotas": data.quotas,
        "quota-changes": data.quota_changes,
        "what-if": data.what_if,
        "payers": data.payers,
        "topics": data.topics,
        "subscriptions": lambda _: data.subscriptions(),
        "subscription-preview": data.subscription_preview,
        "status": lambda _: data.status(),
        "freshness": freshness,
        "cluster": lambda _: data.status()["cluster"],
    }
    return [Route(f"/api/v1/{name}", _endpoint(answer), methods=["GET"]) for name, answer in answers.items()]


def _endpoint(answer: Callable[[Any], Any]) -> Callable[[Request], Awaitable[Response]]:
    async def respond(request: Request) -> Response:
        try:
            result = answer(query_of(request))
            return json_response(await result if inspect.isawaitable(result) else result)
        except BadRequestError as exc:
            return json_response({"error": str(exc)}, 400)
        except UnavailableError as exc:
            return json_response({"error": str(exc)}, 503)
        except ConnectionError as exc:
            _unreadable.warning("the store cannot be read for the API", error=str(exc))
            return json_response({"error": f"the store cannot be read: {shortened(str(exc), 300)}"}, 503)

    return respond


def json_response(value: Any, status_code: int = 200) -> Response:
    return Response(orjson.dumps(value), status_code, media_type="application/json")
