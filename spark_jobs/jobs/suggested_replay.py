"""Replays recorded usage under suggested quotas: one question to the what-if engine for each cluster, key and day.

Spark distributes the days. A day begins with empty windows: what waited at midnight is forgotten.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from exporters.clickhouse.client import ClickHouse
from exporters.model import BYTE_KEYS
from quota_metrics.config.entities import Entity, QuotaAlteration, entity_of_names
from quota_metrics.suggestion.suggested_quotas import Replayed, Suggestion, ThrottledClient
from quota_metrics.what_if.answer import BUDGET_OF_PLAN, UnrecordedClusterError, WhatIfAnswer, WhatIfQuestion, answer
from spark_jobs.clickhouse.queries import schema
from spark_jobs.clickhouse.source import arrow_schema, collected, in_tasks
from spark_jobs.jobs.fleet import Day, stored_names

Suggested = Mapping[tuple[str, str], Sequence[Suggestion]]  # by cluster and quota key

_MOST_NAMED = 20  # clients of a quota, the longest throttled

_SCHEMA = schema(
    number=T.IntegerType,
    **dict.fromkeys(("user", "client_id", "rule_user", "rule_client_id"), T.StringType),
    broker_id=T.IntegerType,
    **dict.fromkeys(("before_ms", "after_ms"), T.DoubleType),
    **dict.fromkeys(("examined", "clients"), T.LongType),
)


def with_replay(spark: SparkSession, clickhouse: ClickHouse, suggested: Suggested, days: Sequence[Day]) -> Suggested:
    """The suggestions with what the replay says of those that change a quota of bytes. Raises StoreError."""
    alterations = {
        key: [QuotaAlteration(change.entity, {key[1]: change.suggested_limit}) for change in of_key if change.changes]
        for key, of_key in suggested.items()
    }
    alterable = [day for day in days if day.quota_key in BYTE_KEYS and alterations.get((day.cluster, day.quota_key))]
    if not alterable:
        return suggested
    questions = [
        WhatIfQuestion(alterations[day.cluster, day.quota_key], day.from_ms, day.to_ms, day.cluster)
        for day in alterable
    ]

    def answers(number: int) -> Iterator[pa.Table]:
        try:
            what_if = answer(questions[number], clickhouse, time.time_ns() // 1_000_000, BUDGET_OF_PLAN)
            rows = list(_throttled(what_if, questions[number]))
        except UnrecordedClusterError:
            rows = [{"examined": 0, "clients": -1}]
        yield pa.Table.from_pylist([{"number": number, **row} for row in rows], arrow_schema(_SCHEMA))

    rows_of_key: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in collected(in_tasks(spark, len(alterable), answers, _SCHEMA)).to_pylist():
        rows_of_key[alterable[row["number"]][:2]].append(row)
    replayed = dict(suggested)
    for key, rows in rows_of_key.items():
        covers = {row["number"]: row for row in rows if row["user"] is None}
        answered = [alterable[number] for number, row in covers.items() if row["clients"] >= 0]
        incomplete = [row["examined"] for row in covers.values() if row["examined"] < row["clients"]]
        unthrottled = Replayed(days=len(answered), of_days=len(covers), busiest=min(incomplete, default=None))
        if answered:
            outcomes = _by_rule(rows, sum(day.to_ms - day.from_ms for day in answered), unthrottled)
            replayed[key] = [
                suggestion.replayed(outcomes.get(suggestion.entity, unthrottled)) if suggestion.changes else suggestion
                for suggestion in suggested[key]
            ]
    return replayed


def _throttled(what_if: WhatIfAnswer, question: WhatIfQuestion) -> Iterator[dict[str, Any]]:
    """What the answer covers, then the clients under a changed quota that were or would have been throttled."""
    yield {"examined": what_if.covers.clients, "clients": what_if.covers.of_clients}
    changed = {alteration.entity for alteration in question.alterations}
    for outcome in what_if.outcomes:
        rule, before_ms, after_ms = outcome.after.rule, outcome.before.throttled_ms, outcome.after.throttled_ms
        if rule is not None and rule.entity in changed and (before_ms > 0 or after_ms > 0):
            client = outcome.client
            names = dict(zip(("rule_user", "rule_client_id"), stored_names(rule.entity), strict=True))
            times = {"before_ms": float(before_ms), "after_ms": float(after_ms)}
            of_client = {"user": client.user, "client_id": client.client_id, "broker_id": client.broker_id}
            yield {**of_client, **names, **times, "examined": 0, "clients": 0}


def _by_rule(rows: Sequence[Mapping[str, Any]], length_ms: int, unthrottled: Replayed) -> dict[Entity, Replayed]:
    """Each client counts once, at its worst broker. `unthrottled`: of a quota of which no client was throttled."""
    sums: dict[tuple[Entity, tuple[str, str], int], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in rows:
        if row["user"] is not None:
            rule = entity_of_names(row["rule_user"], row["rule_client_id"])
            at_broker = sums[rule, (row["user"], row["client_id"]), row["broker_id"]]
            at_broker[0] += row["before_ms"]
            at_broker[1] += row["after_ms"]
    worst: dict[Entity, dict[tuple[str, str], tuple[float, float]]] = defaultdict(dict)
    for (rule, client, _), (before_ms, after_ms) in sums.items():
        most_before_ms, most_after_ms = worst[rule].get(client, (0.0, 0.0))
        worst[rule][client] = (max(most_before_ms, before_ms), max(most_after_ms, after_ms))
    replayed = {}
    for rule, clients in worst.items():
        before, after = zip(*clients.values(), strict=True)
        longest = sorted(clients.items(), key=lambda client: (-max(client[1]), client[0]))[:_MOST_NAMED]
        throttled = [ThrottledClient(*names, *(ms / 1000 for ms in before_after)) for names, before_after in longest]
        share, share_before = max(after) / length_ms, max(before) / length_ms
        count = sum(after_ms > 0 for after_ms in after)
        replayed[rule] = unthrottled._replace(clients=count, share=share, share_before=share_before, longest=throttled)
    return replayed
