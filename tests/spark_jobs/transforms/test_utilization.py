"""Usage, limits, throttling and telemetry correlated, against what a person would work out by hand."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from spark_jobs.clickhouse import queries as tables
from spark_jobs.time_range import TimeRange
from spark_jobs.transforms.severity import Thresholds
from spark_jobs.transforms.utilization import Inputs, Run, utilization

pytestmark = pytest.mark.spark

PRODUCE = "producer_byte_rate"
FETCH = "consumer_byte_rate"
REQUEST = "request_percentage"
WHEN = TimeRange(0, 600_000, 60)


class Usage(NamedTuple):
    client_id: str = "app"
    rate: float = 50.0
    user: str = "alice"
    broker_id: int = 1
    throttle_ms: float = 0.0
    quota_key: str = PRODUCE
    window: int = 0
    slots: range = range(60)  # the sixtieths of the window in which it was active

    def row(self, when: TimeRange) -> tuple[Any, ...]:
        client = (self.quota_key, self.user, self.client_id, self.broker_id)
        rates = (self.rate, self.rate, self.rate)
        return ("c", *client, self.window * when.window_ms, *rates, *self.throttled(), bits(self.slots))

    def throttled(self) -> tuple[float, float]:
        return self.throttle_ms, self.throttle_ms / 1000


def bits(slots: range) -> int:
    return sum(1 << slot for slot in slots)


class Limit(NamedTuple):
    user: str
    client_id: str
    value: float | None
    valid_from_ms: int = -1
    quota_key: str = PRODUCE

    def row(self) -> tuple[Any, ...]:
        return ("c", self.quota_key, self.user, self.client_id, self.valid_from_ms, self.value)


class Felt(NamedTuple):
    client_id: str
    produce_throttle_ms: float | None
    fetch_throttle_ms: float | None = None
    window: int = 0

    def row(self, when: TimeRange) -> tuple[Any, ...]:
        felt = (self.produce_throttle_ms, self.fetch_throttle_ms)
        return ("c", "alice", self.client_id, self.window * when.window_ms, *felt)


class Instance(NamedTuple):
    instance_id: str
    version: str
    first_seen_ms: int
    last_seen_ms: int
    terminated: int = 0

    def row(self) -> tuple[Any, ...]:
        seen = (self.first_seen_ms, self.last_seen_ms, self.terminated)
        return ("c", "alice", "app", self.instance_id, "kafka-java", self.version, *seen)


def evaluate(
    spark: SparkSession,
    usage: list[Usage],
    limits: list[Limit],
    *,
    felt: tuple[Felt, ...] = (),
    instances: tuple[Instance, ...] = (),
    when: TimeRange = WHEN,
    thresholds: Thresholds = Thresholds(),
) -> list[dict[str, Any]]:
    """The rows, and that there is one per client, quota key and window, of the promised types."""
    inputs = Inputs(
        usage=spark.createDataFrame([u.row(when) for u in usage], tables.USAGE_SCHEMA),
        limits=spark.createDataFrame([each.row() for each in limits], tables.LIMITS_SCHEMA),
        telemetry=spark.createDataFrame([each.row(when) for each in felt], tables.TELEMETRY_SCHEMA),
        instances=spark.createDataFrame([each.row() for each in instances], tables.INSTANCES_SCHEMA),
    )
    found = utilization(inputs, when, thresholds, Run(bytes(16), 7))
    assert found.dtypes == [(field.name, field.dataType.simpleString()) for field in tables.UTILIZATION_SCHEMA]
    rows = [row.asDict() for row in found.collect()]
    keys = {tuple(row[name] for name in ("user", "client_id", "quota_key", "window_start")) for row in rows}
    assert len(keys) == len(rows)
    return rows


def by_client(rows: list[dict[str, Any]], *names: str) -> dict[str, Any]:
    """The values of these columns by client-id; just the value where there is one column."""
    told = {row["client_id"]: tuple(row[name] for name in names) for row in rows}
    assert len(told) == len(rows)
    return {client_id: values[0] if len(names) == 1 else values for client_id, values in told.items()}


def by_window(rows: list[dict[str, Any]], name: str) -> list[Any]:
    """The values of this column in the order of time."""
    return [row[name] for row in sorted(rows, key=lambda row: row["window_start"])]


def only(rows: list[dict[str, Any]]) -> dict[str, Any]:
    (row,) = rows
    return row


def test_levels_hold_from_their_threshold_on(spark: SparkSession) -> None:
    rates = {0.0: "ok", 59.999: "ok", 60.0: "watch", 79.999: "watch", 80.0: "warn", 94.999: "warn", 95.0: "critical"}
    usage = [Usage(client_id=str(rate), rate=rate) for rate in (*rates, 250.0)]
    rows = evaluate(spark, usage, [Limit("", "<default>", 100.0)])
    expected = {str(rate): (level, rate / 100) for rate, level in (rates | {250.0: "critical"}).items()}
    assert by_client(rows, "level", "utilization") == expected


def test_thresholds_are_configuration(spark: SparkSession) -> None:
    rows = evaluate(spark, [Usage()], [Limit("alice", "", 100.0)], thresholds=Thresholds(0.1, 0.2, 0.5))
    assert only(rows)["level"] == "critical"


def test_any_throttle_time_is_throttled_whatever_the_utilisation(spark: SparkSession) -> None:
    usage = [
        Usage("little", 1.0, throttle_ms=1.0),
        Usage("much", 100.0, throttle_ms=1200.0),
        Usage("free", 500.0, user="bob"),
        Usage("odd", 5.0, user="bob", throttle_ms=300.0),
    ]
    rows = evaluate(spark, usage, [Limit("alice", "<default>", 100.0)])
    quota = "producer_byte_rate 100 B/s of user=alice, client-id=<default>"
    another = "short bursts, or another quota such as request_percentage"
    assert by_client(rows, "level", "throttle_ms_max", "throttled_s", "reason") == {
        "little": ("throttled", 1.0, 0.001, f"throttled 1 ms at most on broker 1: at 1.0 % of {quota}: {another}"),
        "much": ("throttled", 1200.0, 1.2, f"throttled 1.2 s at most on broker 1: wants more than {quota}"),
        "free": ("ok", 0.0, 0.0, "no quota applies"),
        "odd": (
            *("throttled", 300.0, 0.3),
            f"throttled 300 ms at most on broker 1: no producer_byte_rate quota applies: {another}",
        ),
    }


def test_a_client_without_quota_has_no_utilisation(spark: SparkSession) -> None:
    row = only(evaluate(spark, [Usage(rate=1e9)], []))
    expected = {"limit": None, "utilization": None, "level": "ok", "matched_entity": "", "shared_with": 0}
    assert expected.items() <= row.items()
    assert (row["usage"], row["group_usage"]) == (1e9, 1e9)


def test_the_worst_broker_speaks_for_the_client(spark: SparkSession) -> None:
    usage = [Usage("near", 10.0, broker_id=1), Usage("near", 90.0, broker_id=2), Usage("near", 20.0, broker_id=3)]
    usage += [Usage("late", 90.0, broker_id=1), Usage("late", 10.0, broker_id=2, throttle_ms=5.0)]
    usage += [Usage("free", 1.0, user="bob", broker_id=4), Usage("free", 2.0, user="bob", broker_id=5)]
    rows = evaluate(spark, usage, [Limit("alice", "<default>", 100.0)])
    expected = {"near": (2, 90.0, "warn"), "late": (2, 10.0, "throttled"), "free": (5, 2.0, "ok")}
    assert by_client(rows, "broker_id", "usage", "level") == expected


def test_clients_of_a_user_share_its_quota_per_broker(spark: SparkSession) -> None:
    usage = [Usage("a", 30.0), Usage("b", 55.0), Usage("c", 10.0, broker_id=2), Usage("own", 40.0)]
    rows = evaluate(spark, usage, [Limit("alice", "", 100.0), Limit("alice", "own", 50.0)])
    assert by_client(rows, "usage", "group_usage", "shared_with", "utilization") == {
        "a": (30.0, 85.0, 1, 0.85),
        "b": (55.0, 85.0, 1, 0.85),
        "c": (10.0, 10.0, 0, 0.1),
        "own": (40.0, 40.0, 0, 0.8),
    }
    assert by_client(rows, "reason")["a"] == (
        "at 85.0 % of producer_byte_rate 100 B/s of user=alice, 15 B/s headroom on broker 1; "
        "another client shares this quota"
    )


def test_each_user_of_a_default_user_quota_has_its_own_bucket(spark: SparkSession) -> None:
    usage = [Usage("a", 30.0), Usage("b", 30.0), Usage("c", 30.0, user="bob")]
    rows = evaluate(spark, usage, [Limit("<default>", "", 100.0)])
    assert by_client(rows, "group_usage", "shared_with") == {"a": (60.0, 1), "b": (60.0, 1), "c": (30.0, 0)}


def test_users_of_a_client_id_share_its_quota(spark: SparkSession) -> None:
    usage = [Usage("app", 30.0, user=user) for user in ("alice", "bob", "carol")] + [Usage("other", 5.0)]
    rows = evaluate(spark, usage, [Limit("", "<default>", 100.0)])
    told = sorted((row["client_id"], row["user"], row["group_usage"], row["shared_with"]) for row in rows)
    assert told == [*(("app", user, 90.0, 2) for user in ("alice", "bob", "carol")), ("other", "alice", 5.0, 0)]


def test_throttling_counts_for_the_client_that_it_hit(spark: SparkSession) -> None:
    usage = [Usage("a", 60.0, throttle_ms=10.0), Usage("b", 40.0)]
    assert by_client(evaluate(spark, usage, [Limit("alice", "", 100.0)]), "level") == {
        "a": "throttled",
        "b": "critical",
    }


def test_a_limit_that_changes_counts_from_the_window_in_which_it_changed(spark: SparkSession) -> None:
    usage = [Usage(window=window) for window in range(4)]
    limits = [Limit("alice", "", 100.0), Limit("alice", "", 200.0, 90_000), Limit("alice", "", None, 180_000)]
    assert by_window(evaluate(spark, usage, limits), "limit") == [100.0, 200.0, 200.0, None]


def test_a_limit_set_after_the_end_of_the_range_does_not_count(spark: SparkSession) -> None:
    limits = [Limit("alice", "", 100.0), Limit("alice", "", 200.0, 40_000)]
    assert only(evaluate(spark, [Usage()], limits, when=TimeRange(0, 30_000, 60)))["limit"] == 100.0


def test_what_the_client_felt_is_told_by_quota(spark: SparkSession) -> None:
    usage = [Usage(quota_key=key, throttle_ms=1.0) for key in (PRODUCE, FETCH, REQUEST)]
    rows = evaluate(spark, usage, [], felt=(Felt("app", 1150.0, 20.0), Felt("app", 9.0, 9.0, window=1)))
    told = {row["quota_key"]: (row["client_throttle_ms_max"], row["reason"].split("; ")[-1]) for row in rows}
    assert told == {
        PRODUCE: (1150.0, "client felt produce throttle 1150 ms"),
        FETCH: (20.0, "client felt fetch throttle 20 ms"),
        REQUEST: (1150.0, "client felt throttle 1150 ms"),
    }


def test_a_client_that_felt_nothing_or_says_nothing(spark: SparkSession) -> None:
    usage = [Usage("zero"), Usage("silent"), Usage("other")]
    rows = evaluate(spark, usage, [], felt=(Felt("zero", 0.0), Felt("other", None, 5.0)))
    free = "no quota applies"
    expected = {"zero": (0.0, free), "silent": (None, free), "other": (None, free)}
    assert by_client(rows, "client_throttle_ms_max", "reason") == expected


def test_instances_seen_within_the_hour_count_and_the_newest_names_the_software(spark: SparkSession) -> None:
    hour = 3_600_000
    instances = (
        Instance("gone", "1", 0, hour),  # an hour and a window ago
        Instance("muted", "2", hour, hour + 60_000),
        Instance("said goodbye", "3", hour, 2 * hour - 1, terminated=1),
        Instance("said goodbye just now", "4", hour, 2 * hour + 10, terminated=1),
        Instance("later", "5", 2 * hour + 60_000, 2 * hour + 60_000),
    )
    usage = [Usage(window=120), Usage("unheard", window=120)]
    rows = evaluate(spark, usage, [], instances=instances, when=TimeRange(2 * hour, 2 * hour + 120_000, 60))
    told = by_client(rows, "instances", "software_name", "software_version")
    assert told == {"app": (2, "kafka-java", "4"), "unheard": (0, "unknown", "unknown")}


def test_other_quotas_have_a_row_when_they_throttle_or_limit(spark: SparkSession) -> None:
    usage = [Usage(key, 0.0, quota_key=key) for key in (PRODUCE, FETCH, REQUEST, "controller_mutation_rate")]
    usage += [Usage("limited", 25.0, quota_key=REQUEST), Usage("throttled", 0.0, quota_key=REQUEST, throttle_ms=40.0)]
    limits = [Limit("", client_id, 50.0, quota_key=REQUEST) for client_id in ("limited", "throttled")]
    quota = "request_percentage 50.0 % of client-id="
    assert by_client(evaluate(spark, usage, limits), "level", "utilization", "reason") == {
        PRODUCE: ("ok", None, "no quota applies"),
        FETCH: ("ok", None, "no quota applies"),
        "limited": ("ok", 0.5, f"at 50.0 % of {quota}limited, 25.0 % headroom on broker 1"),
        # The wire does not show thread time: it throttled, and how much of it was used nobody can say.
        "throttled": ("throttled", None, f"throttled 40 ms at most on broker 1: by {quota}throttled"),
    }


def test_a_rising_rate_has_a_time_to_its_limit(spark: SparkSession) -> None:
    steps = {"rising": (10.0, 20.0, 30.0), "flat": (30.0, 30.0, 30.0), "falling": (30.0, 20.0, 10.0), "new": (1.0, 9.0)}
    usage = [Usage(name, rate, window=window) for name, rates in steps.items() for window, rate in enumerate(rates)]
    rows = evaluate(spark, usage, [Limit("alice", "<default>", 100.0)])
    told = {name: by_window([row for row in rows if row["client_id"] == name], "eta_s") for name in steps}
    assert told.pop("rising") == [None, None, pytest.approx(420.0)]
    assert told == {"flat": [None] * 3, "falling": [None] * 3, "new": [None] * 2}


def test_a_trend_of_minutes_does_not_reach_beyond_a_day(spark: SparkSession) -> None:
    usage = [Usage(rate=rate, window=window) for window, rate in enumerate((10.0, 10.001, 10.002))]
    assert by_window(evaluate(spark, usage, [Limit("alice", "", 100.0)]), "eta_s") == [None] * 3


def test_nothing_in_nothing_out(spark: SparkSession) -> None:
    assert evaluate(spark, [], [Limit("alice", "", 100.0)]) == []


Judged = tuple[int, str, float | None]


def model(usage: list[Usage], limits: dict[str, float]) -> dict[tuple[str, int], Judged]:
    """Worst broker, level and utilisation by client and window, where only users have quotas."""
    groups: dict[tuple[str, int, int], float] = defaultdict(float)
    brokers: dict[tuple[str, int], list[tuple[float, float, float, int]]] = defaultdict(list)
    for u in usage:
        groups[u.user, u.broker_id, u.window] += u.rate
    for u in usage:
        used = groups[u.user, u.broker_id, u.window] / limits[u.user] if u.user in limits else -1.0
        brokers[u.client_id, u.window].append((u.throttle_ms, used, u.rate, -u.broker_id))
    return {client: judge(*max(candidates)) for client, candidates in brokers.items()}


def judge(throttle_ms: float, used: float, rate: float, minus_broker_id: int) -> Judged:
    at = [(throttle_ms > 0, "throttled"), (used >= 0.95, "critical"), (used >= 0.8, "warn"), (used >= 0.6, "watch")]
    level = next((name for holds, name in at if holds), "ok")
    return -minus_broker_id, level, None if used < 0 else used


def drawn(name: int, rate: int, broker_id: int, throttle_ms: int, window: int) -> Usage:
    user = "alice" if name < 3 else "bob"
    return Usage(str(name), float(rate), user, broker_id, float(throttle_ms), PRODUCE, window)


_USAGE = st.lists(
    st.builds(
        drawn,
        st.integers(0, 5),
        st.integers(0, 100),
        st.integers(1, 3),
        st.sampled_from([0, 0, 0, 1, 1500]),
        st.integers(0, 3),
    ),
    max_size=80,
    unique_by=lambda u: (u.client_id, u.broker_id, u.window),
)


# One Spark job per example, and no shrinking, which would be hundreds of them.
@settings(max_examples=5, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(usage=_USAGE)
def test_any_usage_is_judged_as_the_model_says(spark: SparkSession, usage: list[Usage]) -> None:
    rows = evaluate(spark, usage, [Limit("alice", "", 128.0)])
    told = {
        (row["client_id"], int(row["window_start"].timestamp()) // 60): (
            *(row["broker_id"], row["level"]),
            row["utilization"],
        )
        for row in rows
    }
    assert told == model(usage, {"alice": 128.0})


def test_clients_that_ran_one_after_another_do_not_add_up(spark: SparkSession) -> None:
    jobs = [Usage(f"job-{n}", 40.0, slots=range(12 * n, 12 * n + 12)) for n in range(5)]
    rows = evaluate(spark, jobs, [Limit("alice", "", 62.0)])
    assert {(r["group_usage"], round(r["utilization"], 3), r["level"]) for r in rows} == {(40.0, 0.645, "watch")}
    assert len(rows) == 5


def test_clients_that_overlap_in_part_share_the_time_in_which_any_was_active(spark: SparkSession) -> None:
    early, late = Usage("early", 30.0, slots=range(40)), Usage("late", 30.0, slots=range(20, 60))
    rows = evaluate(spark, [early, late], [Limit("alice", "", 100.0)])
    assert {r["group_usage"] for r in rows} == {40.0}  # (30 x 40 + 30 x 40) / 60
