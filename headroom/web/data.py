"""Rows for `/api/v1/` and the pages: validates parameters, runs queries in threads, caches results for a moment.

Raises BadRequestError for invalid parameters, ConnectionError when the store cannot be read.
"""

import asyncio
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate, groupby
from typing import TypeAlias, TypeVar

from cachetools import TTLCache

from exporters.clickhouse.client import ClickHouse, Row
from headroom.clock import now_ms
from headroom.daemon_thread import in_daemon_thread
from headroom.subscription_preview import preview_of
from headroom.web import own_view, queries, slowed, usage_chart
from headroom.web.own_view import ClientScope
from headroom.web.parameters import BadRequestError, Given, UnavailableError, number_of, text_of
from headroom.web.store_watch import StoreWatch
from headroom.web.usage_chart import by_broker, chart_range, metric_unit, steps_near
from headroom.web.what_if import document_of, question_of
from quota_metrics.config.entities import Entity, entity_of_names, entity_text
from quota_metrics.config.owners import NO_OWNERS, Owners
from quota_metrics.config.resolution import Resolver
from quota_metrics.minutes.records import statement
from quota_metrics.verdict import thresholds
from quota_metrics.verdict.thresholds import thresholds_in_force
from telemetry.subscriptions.subscription import (
    ALL_METRICS,
    INTERVAL_MS,
    MATCH,
    MATCH_KEYS,
    METRICS,
    parse_subscription,
)
from telemetry.wire.errors import InvalidSubscriptionError

LEVELS = tuple(reversed(thresholds.LEVELS))
_AT_ONCE = 8  # queries; below the number that all readers of the managed server may run at once
_PATIENCE_S = 30.0
_MOST_WHAT_IFS = 4  # one runs, the others wait for it, so that they do not delay other readers of the store
_WHAT_IF_PATIENCE_S = 600.0
_SHARED_S = 2.0  # equal requests within it share one result
_SEEN_SHARED_S = 60.0  # of the clients of the last week, which take seconds to find
_MAX_LIMIT = 10_000
_NEAR = 1_000  # rows from the first that are read whole
_NAMES_BYTES = 64 << 10  # in the arrays of a query, and a row on top: ClickHouse takes 128 KiB a parameter
_ADDRESS = re.compile(r"[0-9A-Fa-f:]*[0-9:.][0-9A-Fa-f:.]*")  # what may begin one
_KNOWN_MS = 86_400_000  # a preview examines the instances seen in a day
_MAX_INSTANCES = 20_000
_MAX_SHOWN = 200
MOST_SUGGESTIONS = 50  # the command has all
MOST_SEEN = 100
_TOPICS_RANGE = "1h"  # a client of ten frames a second then has 360 of a sample of 1 %
_CLIENT_TOPICS = 50  # on its page
Answer = TypeVar("Answer")
_Asked: TypeAlias = tuple[str, str]
_Reading: TypeAlias = asyncio.Task[list[Row]]
_SUBSCRIPTION_KEYS = {METRICS: "metrics", INTERVAL_MS: "interval_ms", MATCH: "match"}

ALL_RULES = 1_000_000  # as the limit of queries.LIMITS: more than a cluster has


def rules_of(limits: Iterable[Row]) -> dict[Entity, dict[str, float]]:
    """The values of each entity, from rows of queries.LIMITS of one cluster."""
    rules: dict[Entity, dict[str, float]] = {}
    for rule in limits:
        values = rules.setdefault(entity_of_names(rule["user"], rule["client_id"], rule["ip"]), {})
        values[rule["quota_key"]] = float(rule["value"])
    return rules


def _page_of(query: Given) -> dict[str, int]:
    return {"limit": number_of(query, "limit", 1000, _MAX_LIMIT), "offset": number_of(query, "offset", 0, 10_000_000)}


def payer_rows(over: Iterable[Row], left_out: Iterable[Row], costs: Iterable[Row]) -> list[Row]:
    """Those over their budgets first, then those that cost most.

    `over`: {payer, refused, last_refused_ms}; `left_out`: {payer, exchanges, last_ms}; `costs`: of PAYER_COSTS.
    """
    rows: dict[str, Row] = {}

    def of(payer: str) -> Row:
        nothing: Row = {"refused": {}, "last_refused_ms": None, "not_metered": 0, "pushes": 0, "bytes": 0, "points": 0}
        return rows.setdefault(payer, {"payer": payer, **nothing, "instances": 0})

    for use in over:
        of(use["payer"]).update(refused=dict(use["refused"]), last_refused_ms=use["last_refused_ms"])
    for payer_left_out in left_out:
        of(payer_left_out["payer"]).update(not_metered=payer_left_out["exchanges"])
    for cost in costs:
        of(cost["payer"]).update({name: int(cost[name]) for name in ("pushes", "bytes", "points", "instances")})
    return sorted(
        rows.values(),
        key=lambda row: (-sum(row["refused"].values()), -row["not_metered"], -row["points"], row["payer"]),
    )


class QueryThreads:
    """Threads beside the event loop: while the store hangs, readers of pages must not delay /metrics and syncs."""

    def __init__(self, most: int = _AT_ONCE, patience_s: float = _PATIENCE_S) -> None:
        self._free = asyncio.Semaphore(most)
        self._patience_s = patience_s

    async def run(self, query: Callable[[], Answer]) -> Answer:
        """Raises what `query` raises, and UnavailableError when no thread is free in time."""
        try:
            async with asyncio.timeout(self._patience_s):
                await self._free.acquire()
        except TimeoutError as exc:
            raise UnavailableError("too many questions are being answered, try again later") from exc
        try:
            return await in_daemon_thread(query)
        finally:
            self._free.release()


class Data:
    """Reads from `clickhouse`. `subscriptions` and `status` show the running service, `match_keys` are those of its
    subscriptions. `source`: who measured the usage that is shown unless a parameter says otherwise. `owners`: how the
    team of a client is reached."""

    def __init__(
        self,
        clickhouse: ClickHouse,
        subscriptions: Callable[[], list[Row]],
        status: Callable[[], Row],
        match_keys: Collection[str] = MATCH_KEYS,
        source: str = "gateway",
        owners: Callable[[], Owners] = lambda: NO_OWNERS,
    ) -> None:
        self.subscriptions = subscriptions
        self.status = status
        self._clickhouse = clickhouse
        self._match_keys = match_keys
        self._source = source
        self._owners = owners
        self._threads = QueryThreads()
        self.watch = StoreWatch(clickhouse)
        self._what_if_threads = QueryThreads(most=1, patience_s=_WHAT_IF_PATIENCE_S)
        self._what_ifs = 0  # questions that run or wait
        self._running: dict[_Asked, _Reading] = {}
        self._shared: TTLCache[_Asked, _Reading] = TTLCache(256, _SHARED_S)
        self._seen: TTLCache[_Asked, _Reading] = TTLCache(256, _SEEN_SHARED_S)

    async def headroom(self, query: Given, *, exact: bool = False) -> list[Row]:
        """Clients with their level, the worst first unless `sort` and `order` say otherwise. `exact`: of the user and
        the client id, of which either may be empty; otherwise an empty one stands for all."""
        sql, parameters = self._listed(queries.HEADROOM, query, exact=exact)
        return await self._rows(sql, parameters)

    async def own(self, scope: ClientScope, query: Given) -> Row:
        """What a token's scope may see of its clients, filtered and sorted as `headroom` is."""
        sql, parameters = self._listed(queries.OWN, query)
        parameters |= {f"scope_{name}": value for name, value in scope._asdict().items()}
        rows, windows = await asyncio.gather(
            self._rows(sql, parameters),
            self._read(self._seen, queries.QUOTA_WINDOWS, {}),
        )
        return own_view.document(scope, rows, windows, self._owners(), now_ms())

    def _listed(self, sql: str, query: Given, *, exact: bool = False) -> tuple[str, dict[str, object]]:
        """The query of a list of clients in the order that is asked for, and its parameters."""
        sort = query.get("sort", "level")
        order = query.get("order", "asc" if sort in ("client_id", "user", "quota_key", "cluster") else "desc")
        if sort not in queries.SORT_COLUMNS:
            raise BadRequestError(f"sort must be one of {', '.join(queries.SORT_COLUMNS)}")
        if order not in ("asc", "desc"):
            raise BadRequestError("order must be asc or desc")
        page = _page_of(query)
        parameters = self._filter(query) | {"exact": int(exact), **page}
        return sql.replace("{order}", f"`{sort}` {order}") + (queries.FAR if page["offset"] > _NEAR else ""), parameters

    def _filter(self, query: Given) -> dict[str, object]:
        levels = [level for level in query.get("level", "").split(",") if level]
        for level in levels:
            if level not in LEVELS:
                raise BadRequestError(f"level must be one or more of {', '.join(LEVELS)}")
        source = query.get("source", self._source)
        if source not in ("gateway", "jmx", "all"):
            raise BadRequestError("source must be gateway, jmx or all")
        names: dict[str, object] = {
            name: text_of(query, name) for name in ("cluster", "user", "client_id", "rule", "team")
        }
        search = text_of(query, "q").strip(" ")
        return {
            **names, "exact": 0, "search": search, "address": search if _ADDRESS.fullmatch(search) else "",
            "levels": levels, "source": "" if source == "all" else source,
        }  # fmt: skip

    async def summary(self, query: Given) -> tuple[dict[str, int], list[str]]:
        """Of the last 60 seconds: the number of clients at each level regardless of the filter on `level`, and the
        names of all clusters."""
        (summary,) = await self._rows(queries.SUMMARY, self._filter(query))
        return {level: int(summary["counts"].get(level, 0)) for level in LEVELS}, summary["clusters"]

    async def groups(self, query: Given) -> tuple[list[Row], int]:
        """Clients added up by `by` (user, team or rule) and quota key, and the number of such groups."""
        by = query.get("by", "")
        if by not in queries.GROUPS:
            raise BadRequestError(f"by must be one of {', '.join(queries.GROUPS)}")
        parameters = {**self._filter(query), **_page_of(query)}
        rows = await self._rows(queries.GROUPED.replace("{by}", queries.GROUPS[by]), parameters)
        return rows, int(rows[0]["groups"]) if rows else 0

    async def seen(self, query: Given) -> list[Row]:
        """Clients of the last week that are not active now, by a part of their user or client id; newest first.

        What it read, or why it failed, holds for a minute."""
        search = text_of(query, "q").strip(" ")
        if not search:
            return []
        names = {"search": search, "cluster": text_of(query, "cluster"), "source": self._source, "limit": MOST_SEEN}
        return await self._read(self._seen, queries.SEEN, names)

    async def sparklines(self, rows: Sequence[Row]) -> list[list[tuple[int, float]]]:
        """The last 15 minutes of each row's client at its broker: (minute from 0 to 14, rate)."""
        names = ("cluster", "source", "quota_key", "user", "client_id", "broker_id")
        keys = [[row[name] for name in names] for row in rows]
        ends = accumulate(len(repr(key).encode()) for key in keys)
        sparklines: list[list[tuple[int, float]]] = []
        for _, piece in groupby(zip(ends, keys, strict=True), lambda item: item[0] // _NAMES_BYTES):
            columns = [list(column) for column in zip(*(key for _, key in piece), strict=True)]
            arrays = {f"{name}s": column for name, column in zip(names, columns, strict=True)}
            lines = await self._rows(queries.SPARKLINES, arrays)
            points = {row["place"]: [(int(minute), float(rate)) for minute, rate in row["points"]] for row in lines}
            sparklines += [points.get(place, []) for place in range(1, len(columns[0]) + 1)]
        return sparklines

    async def usage(self, query: Given) -> Row:
        """Rate, limit and throttling of one client per broker, over any range; the shares of the limit where levels
        begin; changes of its quota; when further instances of it began to push; with `metric` also what the client
        itself measured."""
        chosen = chart_range(query)
        names: dict[str, object] = {
            name: text_of(query, name) for name in ("cluster", "quota_key", "user", "client_id")
        }
        parameters = {**names, **chosen._asdict(), "source": self._source}
        metric = text_of(query, "metric")
        rows, thresholds, changes, restarts, measured = await asyncio.gather(
            self._rows(usage_chart.USAGE, parameters | {"arriving_s": usage_chart.ARRIVING_S}),
            self._rows(statement("thresholds"), {}),
            self._rows(usage_chart.CHANGES, parameters),
            self._rows(usage_chart.RESTARTS, parameters),
            self._rows(usage_chart.METRIC, parameters | {"metric": metric}) if metric else asyncio.sleep(0, []),
        )
        own = {
            "name": metric,
            "unit": metric_unit(metric),
            "at": [row["at"] for row in measured],
            "value": [row["value"] for row in measured],
        }
        marks = {"changes": changes, "restarts": restarts}
        steps = steps_near(thresholds_in_force(thresholds))
        shown = {"brokers": by_broker(rows), "steps": steps, **marks, "metric": own if metric else None}
        return {**names, **chosen._asdict(), **shown}

    async def clients(self, query: Given) -> list[Row]:
        parameters: dict[str, object] = {name: text_of(query, name) for name in ("cluster", "user", "client_id")}
        parameters |= {"search": text_of(query, "q").strip(" "), **_page_of(query)}
        return await self._rows(queries.CLIENTS, parameters)

    async def client_count(self, query: Given) -> int:
        (counted,) = await self._rows(queries.CLIENT_COUNT, {"search": text_of(query, "q").strip(" ")})
        return int(counted["total"])

    async def gateway_share(self, query: Given) -> list[Row]:
        """How much of what the brokers meter passes the gateways, most missing bytes first; empty without JMX."""
        parameters = {name: text_of(query, name) for name in ("cluster", "user", "client_id")}
        limit = number_of(query, "limit", 1000, _MAX_LIMIT)
        return await self._rows(queries.GATEWAY_SHARE, {**parameters, "limit": limit})

    async def quotas(self, query: Given) -> list[Row]:
        """Every rule with `q` in its entity or key, the number of clients it applies to, and the utilisation of its
        fullest bucket."""
        names = {"cluster": text_of(query, "cluster"), "of_client": 0, "user": "", "client_id": "", "limit": ALL_RULES}
        wanted = text_of(query, "q").strip(" ").lower()
        rules, matched = await asyncio.gather(self._rows(queries.LIMITS, names), self._rows(queries.CAUGHT, {}))
        caught = {(row["cluster"], row["quota_key"], row["matched_entity"]): row for row in matched}
        matching = []
        for rule in rules:
            text = entity_text(entity_of_names(rule["user"], rule["client_id"], rule["ip"]))
            if wanted not in f"{text} {rule['quota_key']}".lower():
                continue
            counts = caught.get((rule["cluster"], rule["quota_key"], text), {})
            matching.append(
                {
                    **rule,
                    "entity": text,
                    "clients": int(counts.get("clients", 0)),
                    "throttled": int(counts.get("throttled", 0)),
                    "utilization": counts.get("fullest"),
                }
            )
        return matching

    async def what_if(self, query: Given) -> Row:
        """The clients that another quota would throttle, by recorded rates, and the line that sets it."""
        question = question_of(query)
        if self._what_ifs >= _MOST_WHAT_IFS:
            raise UnavailableError("other what-if questions are being answered, try again later")
        self._what_ifs += 1
        try:
            return await self._what_if_threads.run(partial(document_of, question, self._clickhouse))
        finally:
            self._what_ifs -= 1

    async def payers(self, query: Given) -> list[Row]:
        """Who is over the budgets of telemetry or was not metered, then who costs most."""
        limit = number_of(query, "limit", 20, 1000)
        state = self.status()
        # Of all: who is over a budget need not be among those that cost most.
        costs = await self._rows(queries.PAYER_COSTS, {**queries.PAYER_NAMES, "limit": _MAX_LIMIT})
        return payer_rows(state["over_budget"], state["left_out"], costs)[:limit]

    async def topics(self, query: Given, *, exact: bool = False) -> list[Row]:
        """Clients' topics with the bytes of a range, estimated, most first; the team of each client, and that of its
        topic. `exact`: as of `headroom`."""
        seconds = usage_chart.RANGES.get(query.get("range") or _TOPICS_RANGE)
        if seconds is None:
            raise BadRequestError(f"range must be one of {', '.join(usage_chart.RANGES)}")
        names = {name: text_of(query, name) for name in ("cluster", "user", "client_id", "topic")}
        limit = number_of(query, "limit", 1000, _MAX_LIMIT)
        teams = {name: team for name in ("team", "topic_team") if (team := text_of(query, name))}
        parameters = {**names, "exact": int(exact), "seconds": seconds, "limit": _MAX_LIMIT if teams else limit}
        rows = await self._rows(queries.TOPICS, parameters)
        owners = self._owners()
        for row in rows:
            row["team"] = owners.owner(row["user"], row["client_id"]).team
            row["topic_team"] = owners.topic_owner(row["topic"]).team
        return [row for row in rows if all(row[name] == team for name, team in teams.items())][:limit]

    async def quota_changes(self, query: Given) -> list[Row]:
        return await self._rows(queries.CHANGES, {"cluster": text_of(query, "cluster")})

    async def suggestions(self, query: Given) -> list[Row]:
        """What `headroom quotas suggest` found last: the first rows, each with the number of all (`total`)."""
        rows = await self._rows(queries.SUGGESTIONS, {"cluster": text_of(query, "cluster"), "limit": MOST_SUGGESTIONS})
        return [{**row, "entity": entity_text(entity_of_names(row["user"], row["client_id"]))} for row in rows]

    async def subscription_preview(self, query: Given) -> Row:
        """The known instances that a subscription would match, by the rules of the server, and its known metrics."""
        values = {key: text_of(query, name) for key, name in _SUBSCRIPTION_KEYS.items()}
        try:
            parsed = parse_subscription(
                "preview", {key: value for key, value in values.items() if value}, self._match_keys
            )
        except InvalidSubscriptionError as exc:
            raise BadRequestError(str(exc)) from exc
        since_ms = now_ms() - _KNOWN_MS
        names = {"since_ms": since_ms, "all": int(ALL_METRICS in parsed.metrics), "prefixes": parsed.metrics}
        look = partial(preview_of, parsed, self._clickhouse, since_ms, most=_MAX_INSTANCES, shown=_MAX_SHOWN)
        preview, metrics = await asyncio.gather(
            self._threads.run(look),
            self._rows(queries.METRICS, names),
        )
        return {
            **preview.document(),
            "is_complete": preview.known < _MAX_INSTANCES,
            "metrics": metrics if parsed.metrics else [],
        }

    async def jobs(self) -> list[Row]:
        return await self._rows(queries.JOBS, {})

    async def client(self, query: Given) -> Row:
        """The data of a client's page: its quotas, who shares them, forecasts, who makes it slow, its topics of an
        hour, its own metrics, its instances, and what was recorded of it in a week. A name that is empty is one; a
        client without an id has a page."""
        if "client_id" not in query:
            raise BadRequestError("client_id is missing; client_id= is the client whose id is empty")
        names: dict[str, str] = {name: text_of(query, name) for name in ("cluster", "user", "client_id")}
        quotas, felt, instances, limits, recorded, topics = await asyncio.gather(
            self.headroom(names, exact=True),
            self._rows(queries.FELT, names),
            self._rows(queries.INSTANCES, names),
            self._rows(queries.LIMITS, {**names, "of_client": 1, "limit": ALL_RULES}),
            self._rows(queries.RECORDED, {**names, "source": self._source}),
            self.topics({**names, "limit": str(_CLIENT_TOPICS)}, exact=True),
        )
        resolved = Resolver(rules_of(limits)).resolve(names["user"], names["client_id"])
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
        active = {quota["quota_key"] for quota in quotas}
        stopped = [row for row in recorded if row["quota_key"] not in active]
        owner = self._owners().owner(names["user"], names["client_id"])
        culprit, client = None, {**names, "source": self._source}
        if felt:
            minutes = await self._rows(slowed.FELT, {**client, **slowed.METRICS})
            if slowed.may_be_slowed(minutes):
                heavy, busy = await self._rows(slowed.HEAVY, client), await self._rows(slowed.BUSY, client)
                culprit = slowed.slowed_by(client, minutes, heavy, busy)
        own = {"felt": felt, "instances": instances, "topics": topics, "slowed": culprit}
        return {**names, **owner._asdict(), "quotas": quotas, "stopped": stopped, **own}

    async def _of_bucket(self, sql: str, quota: Row) -> list[Row]:
        keys = ("cluster", "quota_key", "broker_id", "bucket_user", "bucket_client_id", "source")
        return await self._rows(sql, {key: quota[key] for key in keys})

    async def _rows(self, sql: str, parameters: Mapping[str, object]) -> list[Row]:
        """Runs one query for all equal requests within a moment, again when it failed."""
        asked = _asked(sql, parameters)
        shared = self._shared.get(asked)
        if shared is not None and shared.done() and (shared.cancelled() or shared.exception() is not None):
            del self._shared[asked]
        return await self._read(self._shared, sql, parameters)

    async def _read(self, shared: TTLCache[_Asked, _Reading], sql: str, parameters: Mapping[str, object]) -> list[Row]:
        """What `shared` remembers, or what runs for longer than that, or a new query."""
        asked = _asked(sql, parameters)
        task = shared.get(asked) or self._running.get(asked)
        if task is None:
            reading = self._threads.run(partial(self._clickhouse.rows, sql, parameters))
            task = shared[asked] = self._running[asked] = asyncio.get_running_loop().create_task(reading)
            task.add_done_callback(lambda _: self._running.pop(asked))
        return [dict(row) for row in await asyncio.shield(task)]


def _asked(sql: str, parameters: Mapping[str, object]) -> _Asked:
    return sql, repr(sorted(parameters.items()))
