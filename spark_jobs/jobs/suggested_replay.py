"""Replays recorded usage under suggested quotas: one question to the what-if engine for each cluster, key and day.

Spark distributes the days. A day begins with empty windows: what waited at midnight is forgotten.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession

from exporters.clickhouse.client import ClickHouse
from quota_metrics.config.entities import Entity, QuotaAlteration, entity_of_names
from quota_metrics.simulation.outcomes import KEYS
from quota_metrics.suggestion.suggestions import Replayed, Suggestion
from quota_metrics.what_if.answer import ReplayBudget, UnrecordedClusterError, WhatIfAnswer, WhatIfQuestion, answer
from spark_jobs.arrow import collected
from spark_jobs.jobs.fleet import Day, stored_names
from spark_jobs.session import parallelism
from spark_jobs.time_range import TimeRange

Found = Mapping[tuple[str, str], Sequence[Suggestion]]  # by cluster and quota key

_COLUMNS = (
    "number int, user string, client_id string, broker_id int, rule_user string, rule_client_id string,"
    " before_ms double, after_ms double, examined long, clients long"
)
_TYPES: dict[str, pa.DataType] = {"int": pa.int32(), "long": pa.int64(), "string": pa.string(), "double": pa.float64()}
_ARROW = pa.schema([(name, _TYPES[kind]) for name, kind in (part.split() for part in _COLUMNS.split(","))])


class _ReplayedClient(NamedTuple):
    """At a broker, under a suggested quota."""

    rule: Entity
    user: str
    client_id: str
    broker_id: int


def with_replay(
    spark: SparkSession, clickhouse: ClickHouse, found: Found, days: Sequence[Day], when: TimeRange
) -> Found:
    """The suggestions with what the replay says of those that change a quota of bytes. Raises StoreError."""
    changes = {key: _alterations(of) for key, of in found.items()}
    asked = [day for day in days if day.quota_key in KEYS and changes.get((day.cluster, day.quota_key))]
    if not asked:
        return found
    questions = [
        WhatIfQuestion(changes[day.cluster, day.quota_key], day.from_ms, day.to_ms, day.cluster) for day in asked
    ]
    numbers = spark.range(0, len(asked), 1, min(len(asked), 4 * parallelism(spark.sparkContext)))
    rows = collected(numbers.mapInArrow(_asking(clickhouse, questions), _COLUMNS)).to_pylist()
    of_key: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        of_key[asked[row["number"]][:2]].append(row)
    replayed = dict(found)
    for key, of in of_key.items():
        unanswered = [asked[row["number"]] for row in of if row["clients"] < 0]
        length_ms = when.to_ms - when.from_ms - sum(day.to_ms - day.from_ms for day in unanswered)
        _report_gaps(key, of, len(unanswered))
        if length_ms > 0:
            outcomes = _by_rule(of, length_ms)
            replayed[key] = [
                each.replayed(outcomes.get(each.entity, Replayed())) if each.changes else each for each in found[key]
            ]
    return replayed


def _alterations(found: Iterable[Suggestion]) -> list[QuotaAlteration]:
    return [QuotaAlteration(each.entity, {each.quota_key: each.suggested_limit}) for each in found if each.changes]


def _asking(
    clickhouse: ClickHouse, questions: Sequence[WhatIfQuestion]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def answers(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in (int(number.as_py()) for batch in batches for number in batch.column(0)):
            try:
                found = answer(questions[number], clickhouse, time.time_ns() // 1_000_000, ReplayBudget.of_plan())
                rows = list(_throttled(found, questions[number]))
            except UnrecordedClusterError:
                rows = [{"examined": 0, "clients": -1}]
            numbered = [{"number": number, **row} for row in rows]
            yield from pa.Table.from_pylist(numbered, _ARROW).to_batches()

    return answers


def _throttled(found: WhatIfAnswer, question: WhatIfQuestion) -> Iterator[dict[str, Any]]:
    """What the answer covers, then the clients under a changed quota that were or would have been throttled."""
    yield {"examined": found.covers.clients, "clients": found.covers.of_clients}
    changed = {alteration.entity for alteration in question.alterations}
    for outcome in found.outcomes:
        rule, before_ms, after_ms = outcome.after.rule, outcome.before.throttled_ms, outcome.after.throttled_ms
        if rule is not None and rule.entity in changed and (before_ms > 0 or after_ms > 0):
            client = outcome.client
            names = dict(zip(("rule_user", "rule_client_id"), stored_names(rule.entity), strict=True))
            times = {"before_ms": float(before_ms), "after_ms": float(after_ms)}
            of_client = {"user": client.user, "client_id": client.client_id, "broker_id": client.broker_id}
            yield {**of_client, **names, **times, "examined": 0, "clients": 0}


def _by_rule(rows: Sequence[Mapping[str, Any]], length_ms: int) -> dict[Entity, Replayed]:
    """Each client counts once, at its worst broker."""
    sums: dict[_ReplayedClient, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in rows:
        if row["user"] is not None:
            rule = entity_of_names(row["rule_user"], row["rule_client_id"])
            of_client = sums[_ReplayedClient(rule, row["user"], row["client_id"], row["broker_id"])]
            of_client[0] += row["before_ms"]
            of_client[1] += row["after_ms"]
    found: dict[Entity, Replayed] = {}
    throttled: dict[Entity, set[tuple[str, str]]] = defaultdict(set)
    for client, (before_ms, after_ms) in sums.items():
        if after_ms > 0:
            throttled[client.rule].add((client.user, client.client_id))
        old = found.get(client.rule, Replayed())
        worst = (max(old.share, after_ms / length_ms), max(old.share_before, before_ms / length_ms))
        found[client.rule] = Replayed(len(throttled[client.rule]), *worst)
    return found


def _report_gaps(key: tuple[str, str], rows: Sequence[Mapping[str, Any]], unanswered: int) -> None:
    name = f"{key[1]} of cluster {key[0]!r}"
    if unanswered:
        sys.stderr.write(f"headroom: {unanswered} days of {name} were not replayed: their rows are no longer stored\n")
    part = [row for row in rows if 0 <= row["examined"] < row["clients"]]
    if part:
        least = min(row["examined"] for row in part)
        sys.stderr.write(
            f"headroom: on {len(part)} days the replay of {name} examined the busiest clients only, {least} at least\n"
        )
