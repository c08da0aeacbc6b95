"""What changed at the onset of a level is what a reference in plain Python says; Spark finds the same for the job as
ClickHouse for the live minute; and both tell the same of planted changes, minute by minute."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from quota_metrics.levels import cause
from quota_metrics.levels.definition import Thresholds, is_onset
from quota_metrics.levels.windows_query import SETTINGS
from spark_jobs.jobs import quota_headroom
from spark_jobs.options import HeadroomOptions
from spark_jobs.time_range import TimeRange
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.levels import compute_levels, now_ms, sample, write
from tests.kit.levels_reference import amount_text
from tests.kit.points import Instance, store_fleet

pytestmark = [pytest.mark.spark, pytest.mark.clickhouse]

CASES, OF_A_QUERY = 2_000, 500
MINUTE_MS, MINUTES = 60_000, 13
PRODUCE = "producer_byte_rate"


class Change(NamedTuple):
    """A window of client `u a` beside the one before it at the same broker."""

    quota_key: str
    value: float | None
    muted_ms: float
    before_value: float
    before_muted_ms: float
    earlier_value: float
    earlier_muted_ms: float
    limit: float | None
    usage: float
    group_usage: float
    culprit_client_id: str
    culprit_share: float | None
    has_base: int
    base_limit_known: int
    base_limit: float | None
    base_usage: float
    base_group_usage: float
    base_bucket_client_id: str
    base_culprit_client_id: str
    base_culprit_share: float | None
    total_usage: float
    total_before: float
    seen_before: int
    observed_before: int
    start_ms: int
    level: str
    earlier_cause: str
    change: str | None
    change_kept: float | None
    change_growth: float | None
    change_sent: float | None
    change_received: float | None
    usage_before_onset: float
    broker_id: int = 7
    user: str = "u"
    client_id: str = "a"
    culprit_user: str = "u"
    base_culprit_user: str = "u"
    bucket_user: str = "u"
    bucket_client_id: str = ""
    base_bucket_user: str = "u"


def drawn_change(chosen: random.Random) -> Change:
    shared = chosen.random() < 0.6
    group, before = (chosen.choice([0.0, chosen.uniform(1, 100), chosen.uniform(1e5, 1e6)]) for _ in range(2))
    has_base = chosen.random() < 0.8
    before = before if has_base else 0.0
    own, own_before = (total * (chosen.random() if shared else 1.0) for total in (group, before))
    greediest, was = (chosen.choice(["a", "b", "b", "b", "c"]) for _ in range(2))
    share, was_share = (chosen.uniform(0.3, 1.0) if shared and chosen.random() < 0.8 else None for _ in range(2))
    return Change(
        quota_key=chosen.choice([PRODUCE, PRODUCE, "request_percentage"]),
        value=chosen.choice([None, 0.79, 0.8, 1.1, 1.1, 1.1]),
        muted_ms=chosen.choice([0.0, 0.0, 900.0]),
        before_value=chosen.choice([0.0, 0.3, 0.3, 0.74, 0.76, 0.8]),
        before_muted_ms=chosen.choice([0.0] * 5 + [10.0]),
        earlier_value=chosen.choice([0.0, 0.74, 0.76]),
        earlier_muted_ms=chosen.choice([0.0] * 5 + [10.0]),
        limit=chosen.choice([None, 0.0, 50.0, 5e5, chosen.uniform(1, 1e6)]),
        usage=own,
        group_usage=group,
        culprit_client_id=greediest if share else "",
        culprit_share=share,
        has_base=int(has_base),
        base_limit_known=int(chosen.random() < 0.8),
        base_limit=chosen.choice([None, 0.0, 100.0, 1e6, chosen.uniform(1, 1e6)]),
        base_usage=own_before,
        base_group_usage=before,
        base_bucket_client_id=chosen.choice(["", "", "", "a"]),
        base_culprit_client_id=was if was_share else "",
        base_culprit_share=was_share,
        total_usage=own * chosen.choice([1.0, 1.0, 1.5]),
        total_before=own_before + chosen.choice([0.0, 0.0, own, 2 * own]),
        seen_before=chosen.choice([0, 5]),
        observed_before=chosen.choice([0, 1]),
        start_ms=chosen.randrange(0, 10**13, MINUTE_MS),
        level=chosen.choice(["ok", "watch", "unknown", *["warn", "critical", "throttled"] * 3]),
        earlier_cause=chosen.choice(["", "", "told before"]),
        **drawn_instances(chosen),
        usage_before_onset=chosen.choice([0.0, own / 2, own / 2, own, own_before]),
    )


def drawn_instances(chosen: random.Random) -> dict[str, Any]:
    """What instances_query says of the last onset; nothing of most."""
    if chosen.random() < 0.3:
        return dict.fromkeys(("change", "change_kept", "change_growth", "change_sent", "change_received"))
    return {
        "change": chosen.choice(
            ["", "2 instances since 00:00 UTC, 1 before", "2 of 2 instances restarted at 00:00 UTC"]
        ),
        "change_kept": chosen.choice([0.0, 0.5, 1.0]),
        "change_growth": chosen.choice([0.0, 0.2, 1.0]),
        "change_sent": chosen.choice([None, None, 0.2, 0.5, 0.9, 1.0]),
        "change_received": chosen.choice([None, None, 0.3, 0.745, 1.0]),
    }


def cause_of(change: Change) -> str:
    """From the definition of docs/levels.md."""
    if change.level not in ("warn", "critical", "throttled"):
        return ""
    is_near = change.muted_ms > 0 or (change.value is not None and change.value >= 0.8)
    was_calm = change.before_value < 0.75 or (
        change.before_value < 0.8 and change.earlier_value < 0.75 and change.earlier_muted_ms == 0
    )
    if not (is_near and was_calm and change.before_muted_ms == 0):
        return change.earlier_cause or instances(change)
    minutes = change.start_ms // MINUTE_MS
    at = f"{minutes // 60 % 24:02}:{minutes % 60:02} UTC"
    return next((told for told in (tell(change, at) for tell in (lowered, began, moved, rose)) if told), "")


def lowered(change: Change, at: str) -> str:
    """Whether the load of before, under the limit of now, makes at least half of the rise in utilisation."""
    limit, was = change.limit, change.base_limit
    if not (change.has_base and change.base_limit_known) or limit is None or (was is not None and limit >= was):
        return ""
    rate = change.base_group_usage if change.base_bucket_client_id == "" else change.base_usage
    if rate == 0:
        return ""
    if was is not None and limit:  # utilisation: before, after the change of the limit alone, now
        first, alone, last = rate / was, rate / limit, change.group_usage / limit
        explained = alone - first >= 0.5 * (last - first)
    else:  # from none, or to 0
        explained = rate >= 0.5 * change.group_usage
    if not explained:
        return ""
    now = amount_text(limit, change.quota_key)
    if was is None:
        return f"limit of {now} since {at}, none before"
    return f"limit lowered from {amount_text(was, change.quota_key)} to {now} at {at}"


def began(change: Change, at: str) -> str:
    is_new = not change.seen_before and change.observed_before and change.usage > 0
    if not is_new or change.usage < change.group_usage / 2:
        return ""
    with_ = amount_text(change.usage, change.quota_key)
    return f"client began at {at} with {with_}, no usage in the 5 windows before"


def moved(change: Change, at: str) -> str:
    """Whether at least half of what the client sends more here, it sends less elsewhere."""
    here = change.usage - change.base_usage * change.has_base
    group = change.group_usage - change.base_group_usage * change.has_base
    was_here = change.base_usage * change.has_base
    elsewhere = here - max(change.total_usage - change.total_before, 0.0)
    if here <= 0 or change.total_before <= was_here or here < group / 2 or elsewhere < here / 2:
        return ""
    now, total, then, before = (
        amount_text(each, change.quota_key)
        for each in (change.usage, change.total_usage, was_here, change.total_before)
    )
    return f"load moved to broker 7 at {at}: {now} of {total} are there, {then} of {before} before"


def instances(change: Change) -> str:
    """Whether the new instances make at least half of the rise since before the onset."""
    rise = change.usage - change.usage_before_onset
    if not change.change or rise <= 0:
        return ""
    assert change.change_kept is not None
    assert change.change_growth is not None
    sent = change.change_sent if change.quota_key == PRODUCE else None
    if sent is not None:
        explained = sent * change.usage - (1 - change.change_kept) * change.usage_before_onset >= rise / 2
        reported = f"; these report {math.floor(sent * 100 + 0.5)} % of its bytes"
    else:
        explained = change.change_kept == 0 or change.change_growth * change.usage_before_onset >= rise / 2
        reported = ""
    return f"{change.change}{reported}" if explained else ""


def rose(change: Change, at: str) -> str:
    rise = change.group_usage - change.base_group_usage
    is_alone = change.culprit_share is None or change.culprit_client_id == "a"
    if not change.has_base or change.base_bucket_client_id or is_alone or rise <= 0:
        return ""
    assert change.culprit_share is not None
    takes, total = change.culprit_share * change.group_usage, change.base_group_usage
    others = total - change.base_usage
    before = max(others, 0.0)  # nobody, or this client, took most
    greediest = change.base_culprit_client_id
    is_same = bool(greediest) and greediest == change.culprit_client_id
    if change.base_culprit_share is not None and greediest != "a":
        most = change.base_culprit_share * total
        before = most if is_same else max(min(most, total - most - change.base_usage), 0.0)
    if takes - before < rise / 2:
        return ""
    now, then = amount_text(takes, change.quota_key), amount_text(before, change.quota_key)
    bound = "" if change.base_culprit_share is not None and is_same else "at most "
    return f"neighbour {change.culprit_client_id} takes {now} since {at}, {bound}{then} before"


FOUND = ({"is_onset": is_onset(Thresholds()), **cause.COMPARED}, {"onset_kind": cause.ONSET_KIND})
OF_ONSET = {f"{cause.OF_ONSET}{name}": f"`{name}`" for name in cause.ONSET}
TOLD = ({"onset_cause": cause.ONSET_CAUSE, **OF_ONSET}, {"cause": cause.CAUSE, "later": cause.LAST_ONSET_CAUSE})
_TEXTS = (
    *("quota_key", "user", "client_id", "culprit_user", "culprit_client_id", "bucket_user", "bucket_client_id"),
    *("base_bucket_user", "base_bucket_client_id", "base_culprit_user", "base_culprit_client_id", "level"),
    *("earlier_cause", "change"),
)
_WHOLE = ("has_base", "base_limit_known", "seen_before", "observed_before", "start_ms", "broker_id")


def of_spark(spark: SparkSession, cases: list[Change]) -> list[str]:
    types: dict[str, T.DataType] = {
        name: T.StringType() if name in _TEXTS else T.DoubleType() for name in Change._fields
    }
    types |= dict.fromkeys(_WHOLE, T.LongType())
    schema = T.StructType([T.StructField(name, kind) for name, kind in types.items()]).add("number", T.IntegerType())
    rows = spark.createDataFrame([(*case, number) for number, case in enumerate(cases)], schema)
    for step in FOUND:
        rows = rows.withColumns({name: F.expr(expression) for name, expression in step.items()})
    return [row["onset_kind"] for row in rows.orderBy("number").select("onset_kind").collect()]


def of_clickhouse(clickhouse: RunningClickHouse, cases: list[Change]) -> list[tuple[str, str]]:
    kinds = dict.fromkeys(_TEXTS, "Nullable(String)") | dict.fromkeys(_WHOLE, "Int64")
    types = ", ".join(f"{name} {kinds.get(name, 'Nullable(Float64)')}" for name in Change._fields)
    rows = ", ".join(f"({', '.join('NULL' if value is None else repr(value) for value in case)})" for case in cases)
    query = f"SELECT * FROM values('{types}', {rows})"
    for step in (*FOUND, *TOLD):
        columns = ", ".join(f"{expression} AS {name}" for name, expression in step.items())
        query = f"SELECT *, {columns} FROM ({query})"
    found = clickhouse.store.query(f"SELECT onset_kind, cause, onset_cause, later FROM ({query}) {SETTINGS}")
    assert [at_onset for *_, at_onset, _ in found] == [later for *_, later in found]
    return [(kind, told) for kind, told, *_ in found]


@pytest.mark.parametrize("seed", [1])
def test_job_and_live_minute_tell_what_the_reference_tells(
    spark: SparkSession, clickhouse: RunningClickHouse, seed: int
) -> None:
    chosen = random.Random(seed)
    cases = [drawn_change(chosen) for _ in range(CASES)]
    expected = [cause_of(case) for case in cases]
    live = [one for at in range(0, CASES, OF_A_QUERY) for one in of_clickhouse(clickhouse, cases[at : at + OF_A_QUERY])]
    wrong = [pair for pair in zip(cases, live, expected, strict=True) if pair[1][1] != pair[2]]
    assert wrong == []
    assert of_spark(spark, cases) == [kind for kind, _ in live]
    kinds = Counter(" ".join(told.split()[:2]) for told in expected)
    told = ("limit of", "limit lowered", "client began", "load moved", "neighbour b", "2 instances", "2 of")
    assert min(kinds[kind] for kind in told) >= 10


# Planted: rate and limit of each client in each of twelve minutes. The onset is in minute 6.
def planted(minute: int) -> Iterator[tuple[str, str, float, float | None]]:
    """User, client id, rate and limit at broker 1; of one user all clients share the quota."""
    is_late = minute >= 6
    yield "lowered", "app", 900.0, 1000.0 if is_late else 2000.0
    yield "limited", "app", 900.0, 1000.0 if is_late else None
    yield "faster", "app", 900.0 if is_late else 300.0, 1000.0  # nothing that is recorded explains it
    yield "slow", "app", 700.0 + 20.0 * minute, 1000.0
    if is_late:
        yield "new", "app", 900.0, 1000.0
    yield "peak", "victim", 100.0, 1000.0
    yield "peak", "heavy", 800.0 if is_late else 150.0, 1000.0
    yield "joined", "steady", 300.0, 1000.0
    if is_late:
        yield "joined", "loader", 600.0, 1000.0
    yield "moved", "app", 900.0 if is_late else 450.0, 1000.0
    yield "halfway", "app", 900.0 if is_late else (780.0 if minute == 5 else 450.0), 1000.0
    yield "rollout", "app", 900.0 if is_late else 200.0, 1000.0
    yield "restart", "app", 900.0 if is_late else 200.0, 1000.0
    yield "over", "app", 900.0 if 6 <= minute < 8 else 100.0, 1000.0 if is_late else 2000.0


def test_planted_changes_are_told_by_the_live_minute_and_by_the_job(
    spark: SparkSession, clickhouse: RunningClickHouse
) -> None:
    start_ms = now_ms() // MINUTE_MS * MINUTE_MS - 30 * MINUTE_MS
    rows = [
        sample(
            *("cause", start_ms + minute * MINUTE_MS + second * 1000, rate),
            user=user,
            client_id=client_id,
            limit=limit,
            bucket_user=user,
            bucket_client_id="",
            matched_entity=f"user={user}",
        )
        for minute in range(MINUTES)
        for user, client_id, rate, limit in planted(minute)
        for second in range(60)
    ]
    rows += [  # what moves to broker 1 in the minute of the onset
        sample("cause", at_ms, 450.0, user="moved", broker_id=2, bucket_user="moved", bucket_client_id="")
        for at_ms in range(start_ms, start_ms + 6 * MINUTE_MS, 1000)
    ]
    rows += [  # most of it in the minute before, in which broker 1 is just below the threshold
        sample("cause", at_ms, rate, user="halfway", broker_id=2, bucket_user="halfway", bucket_client_id="")
        for minute, rate in enumerate([450.0] * 5 + [120.0])
        for at_ms in range(start_ms + minute * MINUTE_MS, start_ms + (minute + 1) * MINUTE_MS, 1000)
    ]
    write(clickhouse.store, rows, "cause")
    begin_ms = start_ms + 6 * MINUTE_MS
    store_instances(clickhouse, begin_ms)
    compute_levels(clickhouse.store, *(start_ms // 1000 + 60 * minute for minute in range(MINUTES)))
    live = told(clickhouse, "headroom_by_minute")
    at = f"{begin_ms // 3_600_000 % 24:02}:{begin_ms // MINUTE_MS % 60:02} UTC"
    expected = {
        ("lowered", "app"): f"limit lowered from 2.0 kB/s to 1.0 kB/s at {at}",
        ("limited", "app"): f"limit of 1.0 kB/s since {at}, none before",
        ("new", "app"): f"client began at {at} with 900 B/s, no usage in the 5 windows before",
        ("peak", "victim"): f"neighbour heavy takes 800 B/s since {at}, 150 B/s before",
        ("joined", "steady"): f"neighbour loader takes 600 B/s since {at}, at most 0 B/s before",
        ("moved", "app"): f"load moved to broker 1 at {at}: 900 B/s of 900 B/s are there, 450 B/s of 900 B/s before",
        ("halfway", "app"): f"load moved to broker 1 at {at}: 900 B/s of 900 B/s are there, 780 B/s of 900 B/s before",
        ("joined", "loader"): f"client began at {at} with 600 B/s, no usage in the 5 windows before",
    }
    versions = "java 4.3.1 since {at}, java 3.9.1 before"
    of_instances = {
        ("rollout", "app"): f"5 of 10 instances run {versions.format(at=at)}; these report 90 % of its bytes",
        ("restart", "app"): f"1 of 1 instances restarted at {at}; these report 100 % of its bytes",
    }
    for minute in range(MINUTES):
        told_later = of_instances if minute > 6 else {}
        of_minute = {client: text for (client, at_ms), text in live.items() if at_ms == start_ms + minute * MINUTE_MS}
        assert {client: text for client, text in of_minute.items() if text} == (
            expected | told_later if 6 <= minute <= 6 + cause.TOLD_WINDOWS else {}
        ), minute
    # The job, of ranges that begin before, at and after the onset.
    for first in (0, 6, 9, 11):
        when = TimeRange(start_ms + first * MINUTE_MS, start_ms + MINUTES * MINUTE_MS, 60)
        quota_headroom.run(HeadroomOptions(clickhouse.url, when, cluster="cause"))
        of_job = told(clickhouse, "quota_utilization_committed", when.from_ms)
        assert of_job == {key: text for key, text in live.items() if key[1] >= when.from_ms}, first


def store_instances(clickhouse: RunningClickHouse, begin_ms: int) -> None:
    """Of `rollout` five of ten instances are replaced, which then report 90 % of the bytes; `restart` has another."""
    fleets = {
        "rollout": [OLD_STAYS] * 5 + [OLD_ENDS] * 5 + [NEW] * 5,
        "restart": [OLD_ENDS, NEW._replace(version="3.9.1")],
    }
    for user, fleet in fleets.items():
        store_fleet(clickhouse.store, "cause", user, "app", fleet, begin_ms)


OLD_STAYS = Instance(first_s=-1500, version="3.9.1", sent=10.0)
OLD_ENDS = OLD_STAYS._replace(last_s=5, ended=True, sent=0.0)
NEW = Instance(first_s=5, version="4.3.1", sent=90.0)


def told(clickhouse: RunningClickHouse, table: str, from_ms: int = 0) -> dict[tuple[tuple[str, str], int], str]:
    rows: list[Any] = clickhouse.store.query(
        f"SELECT user, client_id, toInt64(toUnixTimestamp(window_start)) * 1000, cause FROM headroom.{table}"
        f" WHERE cluster = 'cause' AND toUnixTimestamp(window_start) >= {from_ms // 1000}"
    )
    return {((user, client_id), at_ms): text for user, client_id, at_ms, text in rows}
