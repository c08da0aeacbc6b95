"""The what-if form: for how many seconds clients were above the limit that they would have under another quota.

Compares recorded rates per second with that limit, for the rules that are in force now; bounded in time and rows. Bytes
that a throttled client sends later are not replayed: `headroom quotas what-if` does that, in seconds to minutes.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from exporters.clickhouse.reader import Nodes, Row, read_rows
from exporters.kafka_configs import kafka_configs_line
from exporters.model import DEFAULT_ENTITY
from headroom.web import queries, what_if_queries
from headroom.web.parameters import BadRequestError, Given, UnavailableError, text_of
from headroom.web.query_threads import QueryThreads
from headroom.web.rules import ALL_RULES, rules_of
from headroom.web.what_if_outcome import Outcome, documents
from quota_metrics.config.entities import CLIENT_ID, USER, Alteration, entity_of
from quota_metrics.config.timeline import Epoch, Pair, bucket_key
from quota_metrics.config.validation import refusal
from quota_metrics.simulation.outcomes import KEYS

RANGES = {"15m": 15, "1h": 60, "6h": 360}  # minutes; quota_usage_recent holds six hours
_COMPLETE_AFTER_S = 4  # by then the rows of a minute are stored
_TIMEOUT_S = 20.0
_MAX_CLIENTS = 2_000  # on a broker each
_MAX_ROWS = 1_000_000  # of usage of these clients
_MAX_WAITING = 4
_SHOWN = 200


class Question(NamedTuple):
    """A quota to set, or to remove with `value` None, and the recorded time to look at."""

    cluster: str
    entity: tuple[tuple[str, str | None], ...]
    quota_key: str
    value: float | None
    since: str

    @property
    def line(self) -> str:
        """The kafka-configs.sh line that makes the change."""
        return kafka_configs_line(self.entity, self.quota_key, self.value)

    @property
    def replay(self) -> str:
        """The command that replays the recording; `--flag=value`, so that no name is read as a flag."""
        names = [f"--{kind}={name}" for kind, name in self.entity if name is not None]
        defaults = [f"--defaults={kind}" for kind, name in self.entity if name is None]
        change = f"--delete={self.quota_key}" if self.value is None else f"--add={self.quota_key}={self.value:.0f}"
        cluster = [f"--cluster={self.cluster}"] if self.cluster else []
        return shlex.join(
            ["headroom", "quotas", "what-if", *names, *defaults, change, f"--since={self.since}", *cluster]
        )


def question_of(given: Given) -> Question:
    """Parameters: cluster, user, client_id ('' is no part of the entity, <default> its default), quota_key, value ('':
    remove it), since. Raises BadRequestError with what a broker would refuse."""
    names = {USER: text_of(given, "user"), CLIENT_ID: text_of(given, "client_id")}
    if any("\0" in name for name in names.values()) or "\0" in text_of(given, "cluster"):
        raise BadRequestError("names must not contain NUL")
    entity = entity_of({kind: None if name == DEFAULT_ENTITY else name for kind, name in names.items() if name})
    quota_key, since = given.get("quota_key", KEYS[0]), given.get("since", "1h")
    if quota_key not in KEYS:
        raise BadRequestError(f"quota_key must be one of {', '.join(KEYS)}")
    if since not in RANGES:
        raise BadRequestError(f"since must be one of {', '.join(RANGES)}")
    value = _value(text_of(given, "value").strip())
    message = refusal(Alteration(entity, {quota_key: value}))
    if message:
        raise BadRequestError(message)
    return Question(text_of(given, "cluster"), entity, quota_key, value, since)


class WhatIf:
    """Answers questions one after the other, so that they do not delay other readers of the store."""

    def __init__(self, nodes: Nodes, threads: QueryThreads) -> None:
        self._nodes = nodes
        self._threads = threads
        self._one = asyncio.Semaphore(1)
        self._waiting = 0

    async def ask(self, question: Question) -> dict[str, Any]:
        """The affected clients, the newly throttled first. Raises BadRequestError, ConnectionError."""
        if self._waiting >= _MAX_WAITING:
            raise UnavailableError("other what-if questions are being answered, try again later")
        self._waiting += 1
        try:
            async with self._one:
                return await self._threads.run(partial(answer, question, self._nodes, int(time.time())))
        finally:
            self._waiting -= 1


def answer(question: Question, nodes: Nodes, now_s: int) -> dict[str, Any]:
    """Reads the store three times. Raises BadRequestError, ConnectionError."""
    to_s = (now_s - _COMPLETE_AFTER_S) // 60 * 60
    from_s = to_s - 60 * RANGES[question.since]
    recorded = _Recorded(nodes, {"from_s": from_s, "to_s": to_s, "quota_key": question.quota_key}, question.cluster)
    seen = recorded.seen(question)
    examined = _within_budget(seen)
    pairs = {row["pair"]: _pair(question, row) for row in examined}
    epoch = Epoch(
        0, recorded.rules(), Alteration(question.entity, {question.quota_key: question.value}), pairs.values()
    )
    affected = epoch.affected()
    over = recorded.over(epoch, {name: pair for name, pair in pairs.items() if _is_limited(epoch, pair, affected)})
    outcomes = [
        Outcome(epoch, pairs[row["pair"]], row, *over.get((row["pair"], row["broker_id"]), (0.0, 0.0)))
        for row in examined
        if pairs[row["pair"]] in affected
    ]
    shown, counts = documents(outcomes, to_s - from_s, _SHOWN)
    return {
        "command": question.line,
        "replay": question.replay,
        "since": question.since,
        "covers": _coverage(seen, examined, from_s, to_s),
        "clients": shown,
        "counts": counts,
        "affected": len(outcomes),
        "unaffected": len(examined) - len(outcomes),
    }


class _Recorded:
    """What the store has of one cluster."""

    def __init__(self, nodes: Nodes, when: Mapping[str, object], cluster: str) -> None:
        self._nodes = nodes
        self._parameters = dict(when)
        self._parameters["cluster"] = self._cluster(cluster)

    def seen(self, question: Question) -> list[Row]:
        """Clients on a broker, of those that the change may affect."""
        names = {kind: name or "" for kind, name in question.entity}
        given = {"user": names.get(USER, ""), "client_id": names.get(CLIENT_ID, ""), "limit": _MAX_CLIENTS}
        shared = what_if_queries.SHARING if given["user"] or given["client_id"] else what_if_queries.EVERYONE
        return self._rows(what_if_queries.SEEN.replace("{shared}", shared), **given)

    def rules(self) -> dict[Any, dict[str, float]]:
        return rules_of(self._rows(queries.LIMITS, limit=ALL_RULES))

    def over(self, epoch: Epoch, pairs: Mapping[str, Pair]) -> dict[tuple[str, int], tuple[float, float]]:
        """Seconds above the limit and highest rate / limit, by hash of the pair and broker."""
        if not pairs:
            return {}
        places: dict[Any, int] = {}
        rules = {name: epoch.quotas[pair].after for name, pair in pairs.items()}
        buckets = [places.setdefault(bucket_key(pairs[name], rule), len(places) + 1) for name, rule in rules.items()]
        limits = [rule.value for rule in rules.values() if rule is not None]
        rows = self._rows(
            what_if_queries.OVER, pairs=_numbers(rules), buckets=_numbers(buckets), limits=_numbers(limits)
        )
        return {(row["pair"], row["broker_id"]): (row["over_s"], row["peak"]) for row in rows}

    def _cluster(self, wanted: str) -> str:
        if wanted and self._rows(what_if_queries.HAS_USAGE, cluster=wanted):
            return wanted
        found = [row["cluster"] for row in self._rows(what_if_queries.CLUSTERS)]
        if not found:
            raise BadRequestError("no usage of this quota was recorded in this time")
        if not wanted and len(found) > 1:
            raise BadRequestError(f"choose a cluster: {', '.join(found)}")
        if wanted:
            raise BadRequestError(
                f"no usage of cluster {wanted!r} was recorded in this time, only of {', '.join(found)}"
            )
        return str(found[0])

    def _rows(self, sql: str, **more: object) -> list[Row]:
        parameters = {**self._parameters, **more}
        return self._nodes.ask(partial(read_rows, sql=sql, parameters=parameters, timeout_s=_TIMEOUT_S))


def _pair(question: Question, row: Row) -> Pair:
    return question.quota_key, row["user"], row["client_id"]


def _is_limited(epoch: Epoch, pair: Pair, affected: set[Pair]) -> bool:
    """Whether it shares a limit with an affected pair after the change."""
    key = bucket_key(pair, epoch.quotas[pair].after)
    return key is not None and not affected.isdisjoint(epoch.groups[key])


def _within_budget(seen: Sequence[Row]) -> list[Row]:
    """The first clients, at least one."""
    rows = 0.0
    for place, row in enumerate(seen):
        rows += row["samples"]
        if rows > _MAX_ROWS:
            return list(seen[: max(place, 1)])
    return list(seen)


def _coverage(seen: Sequence[Row], examined: Sequence[Row], from_s: int, to_s: int) -> dict[str, Any]:
    """Which time and which share of the clients that the change may affect."""
    all_bytes = seen[0]["all_bytes"] if seen else 0.0
    return {
        "from": time.strftime("%Y-%m-%d %H:%M", time.gmtime(from_s)),
        "to": time.strftime("%Y-%m-%d %H:%M", time.gmtime(to_s)),
        "clients": len(examined),
        "of_clients": int(seen[0]["clients"]) if seen else 0,
        "bytes_share": sum(row["bytes"] for row in examined) / all_bytes if all_bytes else 1.0,
    }


def _numbers(values: Sequence[float | int] | Mapping[str, object]) -> str:
    """An array as a parameter; numbers must not be quoted."""
    return "[" + ",".join(map(str, values)) + "]"


def _value(text: str) -> float | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise BadRequestError("value must be a whole number of bytes per second, or empty to remove the quota")
    return float(text)
