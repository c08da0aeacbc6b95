"""Rows for `/api/v1/` and the pages: validates parameters, runs queries in threads, caches results for a moment.

Raises BadRequestError for invalid parameters, ConnectionError when the store cannot be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from cachetools import TTLCache

from exporters.clickhouse.client import ClickHouse, Row
from headroom.clock import now_ms
from headroom.subscription_preview import preview_of
from headroom.web import payers, queries
from headroom.web.parameters import BadRequestError, Given, number_of, text_of
from headroom.web.query_threads import QueryThreads
from headroom.web.rules import ALL_RULES, rules_of
from headroom.web.what_if import WhatIfQueue, question_of
from quota_metrics.config.entities import entity_of_names
from quota_metrics.config.resolution import Resolver
from quota_metrics.levels import definition
from quota_metrics.measure.quota_in_force import entity_text
from telemetry.subscriptions.subscription import (
    ALL_METRICS,
    INTERVAL_MS,
    MATCH,
    MATCH_KEYS,
    METRICS,
    parse_subscription,
)
from telemetry.wire.errors import InvalidSubscriptionError

LEVELS = tuple(reversed(definition.LEVELS))
_SHARED_S = 2.0  # equal requests within it share one result
_MAX_LIMIT = 10_000
_KNOWN_MS = 86_400_000  # a preview examines the instances seen in a day
_MAX_INSTANCES = 20_000
_MAX_SHOWN = 200
_MAX_RULES = 5_000
_SUBSCRIPTION_KEYS = {METRICS: "metrics", INTERVAL_MS: "interval_ms", MATCH: "match"}


class Data:
    """Reads from `clickhouse`. `subscriptions` and `status` show the running service, `match_keys` are those of its
    subscriptions. `source`: who measured the usage that is shown unless a parameter says otherwise."""

    def __init__(
        self,
        clickhouse: ClickHouse,
        subscriptions: Callable[[], list[Row]],
        status: Callable[[], Row],
        match_keys: Collection[str] = MATCH_KEYS,
        source: str = "gateway",
    ) -> None:
        self.subscriptions = subscriptions
        self.status = status
        self._clickhouse = clickhouse
        self._match_keys = match_keys
        self._source = source
        self._threads = QueryThreads()
        self._what_if = WhatIfQueue(clickhouse, self._threads)
        self._running: TTLCache[Any, asyncio.Task[list[Row]]] = TTLCache(256, _SHARED_S)

    async def headroom(self, given: Given) -> list[Row]:
        """Clients with their level, the worst first unless `sort` and `order` say otherwise."""
        sort = given.get("sort", "level")
        order = given.get("order", "asc" if sort in ("client_id", "user", "quota_key", "cluster") else "desc")
        if sort not in queries.SORT_COLUMNS:
            raise BadRequestError(f"sort must be one of {', '.join(queries.SORT_COLUMNS)}")
        if order not in ("asc", "desc"):
            raise BadRequestError("order must be asc or desc")
        parameters = self._filter(given) | {
            "limit": number_of(given, "limit", 1000, _MAX_LIMIT),
            "offset": number_of(given, "offset", 0, 10_000_000),
        }
        return await self._rows(queries.HEADROOM.replace("{order}", f"`{sort}` {order}"), parameters)

    def _filter(self, given: Given) -> dict[str, object]:
        levels = [level for level in given.get("level", "").split(",") if level]
        for level in levels:
            if level not in LEVELS:
                raise BadRequestError(f"level must be one or more of {', '.join(LEVELS)}")
        source = given.get("source", self._source)
        if source not in ("gateway", "jmx", "client", "all"):
            raise BadRequestError("source must be gateway, jmx, client or all")
        names = {name: text_of(given, name) for name in ("cluster", "user", "client_id")}
        return {**names, "search": text_of(given, "q"), "levels": levels, "source": "" if source == "all" else source}

    async def overview(self, given: Given) -> tuple[list[Row], dict[str, int]]:
        """The same clients, and the number of clients at each level regardless of the filter on `level`."""
        rows, counts = await asyncio.gather(self.headroom(given), self._rows(queries.LEVEL_COUNTS, self._filter(given)))
        found = counts[0]["counts"]
        return rows, {level: int(found.get(level, 0)) for level in LEVELS}

    async def sparklines(self, rows: Sequence[Row]) -> dict[tuple[Any, ...], list[tuple[int, float]]]:
        """The last 15 minutes of each row's client on its worst broker: (minute from 0 to 14, rate)."""
        if not rows:
            return {}
        names = {
            "users": sorted({row["user"] for row in rows}),
            "client_ids": sorted({row["client_id"] for row in rows}),
            "source": self._source,
        }
        found = await self._rows(queries.SPARKLINES, names)
        return {spark_key(row): [(int(minute), float(rate)) for minute, rate in row["points"]] for row in found}

    async def usage(self, given: Given) -> Row:
        """Rate, limit and throttle times of one client per broker and second."""
        parameters = {name: text_of(given, name) for name in ("cluster", "quota_key", "user", "client_id")}
        seconds = number_of(given, "seconds", 900, 86_400)
        rows = await self._rows(queries.USAGE, {**parameters, "seconds": seconds, "source": self._source})
        brokers: dict[str, Row] = {}
        for row in rows:
            broker = brokers.setdefault(str(row["broker_id"]), {"at": [], "rate": [], "throttle_ms": [], "limit": []})
            for name in broker:
                broker[name].append(row[name])
        return {**parameters, "brokers": brokers}

    async def clients(self, given: Given) -> list[Row]:
        """Active clients, and whether they push telemetry."""
        parameters = {name: text_of(given, name) for name in ("cluster", "user", "client_id")}
        return await self._rows(queries.CLIENTS, {**parameters, "limit": number_of(given, "limit", 1000, _MAX_LIMIT)})

    async def gateway_share(self, given: Given) -> list[Row]:
        """How much of what the brokers meter passes the gateways, most missing bytes first; empty without JMX."""
        parameters = {name: text_of(given, name) for name in ("cluster", "user", "client_id")}
        limit = number_of(given, "limit", 1000, _MAX_LIMIT)
        return await self._rows(queries.GATEWAY_SHARE, {**parameters, "limit": limit})

    async def quotas(self, given: Given) -> list[Row]:
        """Every rule, the number of clients it applies to, and the utilisation of its fullest bucket."""
        names = {"cluster": text_of(given, "cluster"), "limit": _MAX_RULES}
        rules, matched = await asyncio.gather(self._rows(queries.LIMITS, names), self._rows(queries.CAUGHT, {}))
        caught = {(row["cluster"], row["quota_key"], row["matched_entity"]): row for row in matched}
        found = []
        for rule in rules:
            text = entity_text(entity_of_names(rule["user"], rule["client_id"], rule["ip"]))
            counts = caught.get((rule["cluster"], rule["quota_key"], text), {})
            found.append(
                {
                    "cluster": rule["cluster"],
                    "entity": text,
                    "quota_key": rule["quota_key"],
                    "value": rule["value"],
                    "since": rule["since"],
                    "clients": int(counts.get("clients", 0)),
                    "throttled": int(counts.get("throttled", 0)),
                    "utilization": counts.get("fullest"),
                }
            )
        return found

    async def what_if(self, given: Given) -> Row:
        """The clients that another quota would throttle, by recorded rates, and the line that sets it."""
        return await self._what_if.ask(question_of(given))

    async def payers(self, given: Given) -> list[Row]:
        """Who is over the budgets of telemetry or was not metered, then who costs most."""
        limit = number_of(given, "limit", 20, 1000)
        state = self.status()
        costs = await self._rows(payers.COSTS, {**payers.NAMES, "limit": limit})
        return payers.payer_rows(state["over_budget"], state["left_out"], costs)[:limit]

    async def quota_changes(self, given: Given) -> list[Row]:
        return await self._rows(queries.CHANGES, {"cluster": text_of(given, "cluster")})

    async def subscription_preview(self, given: Given) -> Row:
        """The known instances that a subscription would match, by the rules of the server, and its known metrics."""
        values = {key: text_of(given, name) for key, name in _SUBSCRIPTION_KEYS.items()}
        try:
            wanted = parse_subscription(
                "preview", {key: value for key, value in values.items() if value}, self._match_keys
            )
        except InvalidSubscriptionError as exc:
            raise BadRequestError(str(exc)) from exc
        since_ms = now_ms() - _KNOWN_MS
        names = {"since_ms": since_ms, "all": int(ALL_METRICS in wanted.metrics), "prefixes": wanted.metrics}
        found, metrics = await asyncio.gather(
            self._threads.run(
                partial(preview_of, wanted, self._clickhouse, since_ms, most=_MAX_INSTANCES, shown=_MAX_SHOWN)
            ),
            self._rows(queries.METRICS, names),
        )
        return {
            **found.document(),
            "is_complete": found.known < _MAX_INSTANCES,
            "metrics": metrics if wanted.metrics else [],
        }

    async def jobs(self) -> list[Row]:
        return await self._rows(queries.JOBS, {})

    async def client(self, given: Given) -> Row:
        """The data of a client's page: its quotas, who shares them, forecasts, its own metrics, its instances."""
        names = {name: text_of(given, name) for name in ("cluster", "user", "client_id")}
        quotas, felt, instances, limits = await asyncio.gather(
            self.headroom({"cluster": names["cluster"], "user": names["user"], "client_id": names["client_id"]}),
            self._rows(queries.FELT, names),
            self._rows(queries.INSTANCES, names),
            self._rows(queries.LIMITS, {"cluster": names["cluster"], "limit": ALL_RULES}),
        )
        resolver = Resolver(rules_of(limits))
        resolved = resolver.resolve(names["user"], names["client_id"])
        for quota in quotas:
            resolution = resolved.get(quota["quota_key"])
            quota["overridden"] = [
                {"entity": entity_text(rule.entity), "value": rule.value}
                for rule in (resolution.overridden if resolution else [])
            ]
            quota["bucket"], forecasts = await asyncio.gather(
                self._of_bucket(queries.BUCKET, quota), self._of_bucket(queries.FORECAST, quota)
            )
            quota["forecast"] = forecasts[0] if forecasts else None
        return {**names, "quotas": quotas, "felt": felt, "instances": instances}

    async def _of_bucket(self, sql: str, quota: Row) -> list[Row]:
        keys = ("cluster", "quota_key", "broker_id", "bucket_user", "bucket_client_id", "source")
        return await self._rows(sql, {key: quota[key] for key in keys})

    async def _rows(self, sql: str, parameters: Mapping[str, object]) -> list[Row]:
        """Runs one query for all equal requests within a second."""
        asked = (sql, repr(sorted(parameters.items())))
        task = self._running.get(asked)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            reading = self._threads.run(partial(self._clickhouse.rows, sql, parameters))
            task = self._running[asked] = asyncio.get_running_loop().create_task(reading)
        return [dict(row) for row in await asyncio.shield(task)]


def spark_key(row: Row) -> tuple[Any, ...]:
    """The key of a sparkline."""
    return tuple(row[name] for name in ("cluster", "quota_key", "user", "client_id", "broker_id"))
