"""Rows of quota_utilization: levels, worst broker, hysteresis, telemetry and reasons of hand-made cases, as staged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from exporters.clickhouse.client import ClickHouse
from exporters.model import UNOWNED
from quota_metrics.levels.cause import CHANGE
from quota_metrics.levels.client_signals import NAMES
from quota_metrics.levels.definition import Thresholds
from spark_jobs.clickhouse import queries
from spark_jobs.clickhouse.runs import Run
from spark_jobs.clickhouse.source import clickhouse_of, stage
from spark_jobs.time_range import TimeRange
from spark_jobs.transforms.utilization import Inputs, utilization
from tests.kit.clickhouse import RunningClickHouse

pytestmark = [pytest.mark.spark, pytest.mark.clickhouse]

PRODUCE, FETCH, REQUEST = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
WINDOW_MS = 60_000
WHEN = TimeRange(0, 20 * WINDOW_MS, 60)
RULE = "producer_byte_rate 100 B/s of user=alice"
TEAMS = [("alice", "owned", "payments"), ("bob", "app", "search")]


class Engines(NamedTuple):
    """What computes rows, and what says of them in words."""

    spark: SparkSession
    clickhouse: ClickHouse


@pytest.fixture(scope="module")
def engines(spark: SparkSession, clickhouse: RunningClickHouse) -> Engines:
    return Engines(spark, clickhouse_of(clickhouse.url))


class Usage(NamedTuple):
    """A row of the usage query; `p95` defaults to `rate`."""

    client_id: str = "app"
    rate: float = 50.0
    p95: float | None = None
    limit: float | None = 100.0
    broker_id: int = 1
    muted_ms: float = 0.0
    throttle_ms: float = 0.0
    window: int = 0
    quota_key: str = PRODUCE
    state: str = ""
    group: float | None = None
    shared_with: int = 0
    greediest: tuple[str, float] = ("", 0.0)
    elapsed_s: int = 60

    def row(self) -> tuple[Any, ...]:
        group = self.rate if self.group is None else self.group
        p95 = group if self.p95 is None else self.p95
        state = self.state or ("none" if self.limit is None else "limited")
        entity = "user=alice" if self.limit is not None else ""
        key = ("c", "gateway", self.quota_key, "alice", self.client_id, self.broker_id, self.window * WINDOW_MS)
        quota = (state, self.limit, self.limit, "", None, entity, "alice", "")
        culprit = (self.shared_with, "alice" * (self.greediest[0] != ""), *self.greediest, group, 1)
        measured = (self.rate, p95, p95, group, p95, group)
        return (*key, 60, self.throttle_ms, self.muted_ms, self.elapsed_s, *quota, *measured, *culprit)


class Felt(NamedTuple):
    """A row of the telemetry query: what the client reports in a window."""

    window: int = 0
    client_id: str = "app"
    produce_throttle_ms: float | None = None
    fetch_throttle_ms: float | None = None
    request_latency_ms: float | None = None
    queue_time_ms: float | None = None
    rebalances: float | None = None
    records_lag: float | None = None
    records_failed: float | None = None
    records_refused: float | None = None
    records_retried: float | None = None
    outgoing_bytes: float | None = None
    sender: tuple[str, float | None] = ("", None)
    lag_per_min: float | None = None

    def row(self) -> tuple[Any, ...]:
        signals = tuple(getattr(self, name, None) for name in NAMES)
        instances = (*self.sender, "", None)
        changes = [None] * len(CHANGE)
        return ("c", "alice", self.client_id, self.window * WINDOW_MS, *signals, *instances, self.lag_per_min, *changes)


class Instance(NamedTuple):
    instance_id: str
    version: str
    first_seen_ms: int
    last_seen_ms: int
    terminated: int = 0
    software: str = "kafka-java"
    client_id: str = "app"

    def row(self) -> tuple[Any, ...]:
        seen = (self.first_seen_ms, self.last_seen_ms, self.terminated)
        return ("c", "alice", self.client_id, self.instance_id, self.software, self.version, *seen)


def evaluate(
    engines: Engines,
    usage: list[Usage],
    *,
    felt: Sequence[Felt] = (),
    instances: tuple[Instance, ...] = (),
    when: TimeRange = WHEN,
    thresholds: Thresholds | None = None,
) -> list[dict[str, Any]]:
    """Computes and stages the rows; checks that there is one per client, quota key and window."""
    spark, thresholds = engines.spark, thresholds or Thresholds()
    inputs = Inputs(
        usage=spark.createDataFrame([u.row() for u in usage], queries.USAGE_SCHEMA),
        telemetry=spark.createDataFrame([each.row() for each in felt], queries.TELEMETRY_SCHEMA),
        instances=spark.createDataFrame([each.row() for each in instances], queries.INSTANCES_SCHEMA),
        teams=spark.createDataFrame(TEAMS, queries.TEAMS_SCHEMA),
        observed=spark.createDataFrame([], queries.OBSERVED_SCHEMA),
    )
    found = utilization(inputs, when, thresholds)
    run = Run(uuid4(), 1, "gateway", "c", when)
    staged = stage(found, engines.clickhouse, queries.STAGING, run, queries.stage_windows(when, thresholds))
    of_run = "SELECT * FROM quota_utilization_staging WHERE run = {run:String} ORDER BY window_start, client_id"
    rows = engines.clickhouse.rows(of_run, run.parameters)
    keys = {tuple(row[name] for name in ("client_id", "quota_key", "window_start")) for row in rows}
    assert len(keys) == len(rows) == staged
    return rows


def by_client(rows: list[dict[str, Any]], *names: str) -> dict[str, Any]:
    """The values of the given columns by client-id; a scalar if there is only one column."""
    reported = {row["client_id"]: tuple(row[name] for name in names) for row in rows}
    assert len(reported) == len(rows)
    return {client_id: values[0] if len(names) == 1 else values for client_id, values in reported.items()}


def test_levels_use_the_greater_of_mean_and_p95(engines: Engines) -> None:
    rates = {0.0: "ok", 59.999: "ok", 60.0: "watch", 79.999: "watch", 80.0: "warn", 94.999: "warn", 95.0: "critical"}
    usage = [Usage(f"mean {rate}", rate) for rate in rates] + [Usage(f"p95 {rate}", 1.0, p95=rate) for rate in rates]
    expected = {f"{by} {rate}": level for rate, level in rates.items() for by in ("mean", "p95")}
    assert by_client(evaluate(engines, usage), "level") == expected


def test_rows_name_the_team_of_their_client(engines: Engines) -> None:
    assert by_client(evaluate(engines, [Usage("owned"), Usage("app")]), "team") == {"owned": "payments", "app": UNOWNED}


def test_throttled_level_depends_on_muted_time(engines: Engines) -> None:
    usage = [
        Usage("a millisecond", 1.0, muted_ms=1.0, throttle_ms=1.0),
        Usage("one percent", 100.0, muted_ms=600.0, throttle_ms=600.0),
        Usage("no quota", 500.0, limit=None, muted_ms=2000.0, throttle_ms=300.0),
        Usage("earlier", 1.0, muted_ms=2000.0),
        Usage("unknown", 1.0, limit=None, state="unknown"),
        Usage("free", 1.0, limit=None),
    ]
    another = "short bursts, or another quota such as request_percentage"
    assert by_client(evaluate(engines, usage), "level", "throttled_s", "limit_known", "reason") == {
        "a millisecond": (
            *("critical", 0.001, 1),
            f"muted 0.0 s of 60 s on broker 1, throttle times up to 1 ms: at 1.0 % of {RULE}: {another}",
        ),
        "one percent": (
            *("throttled", 0.6, 1),
            f"muted 0.6 s of 60 s on broker 1, throttle times up to 600 ms: wants more than {RULE}",
        ),
        "no quota": (
            *("throttled", 2.0, 1),
            "muted 2.0 s of 60 s on broker 1, throttle times up to 300 ms: no producer_byte_rate quota applies: "
            f"{another}",
        ),
        "earlier": (
            *("throttled", 2.0, 1),
            f"muted 2.0 s of 60 s on broker 1 by an earlier throttle time: at 1.0 % of {RULE}: {another}",
        ),
        "unknown": ("unknown", 0.0, 0, "no quota was observed yet"),
        "free": ("ok", 0.0, 1, "no quota applies"),
    }


def test_open_window_is_evaluated_over_its_elapsed_time(engines: Engines) -> None:
    (row,) = evaluate(engines, [Usage(muted_ms=100.0, throttle_ms=100.0, elapsed_s=10)], when=TimeRange(0, 10_000, 60))
    assert (row["level"], row["complete"]) == ("throttled", 0)


def test_worst_broker_determines_the_level(engines: Engines) -> None:
    usage = [
        Usage("near", 10.0, broker_id=1),
        Usage("near", 20.0, p95=90.0, broker_id=2),
        Usage("near", 89.0, broker_id=3),
    ]
    usage += [Usage("muted", 90.0, broker_id=1), Usage("muted", 10.0, broker_id=2, muted_ms=700.0, throttle_ms=5.0)]
    usage += [Usage("short", 90.0, broker_id=1), Usage("short", 10.0, broker_id=2, muted_ms=5.0, throttle_ms=5.0)]
    usage += [Usage("free", 1.0, limit=None, broker_id=4), Usage("free", 2.0, limit=None, broker_id=5)]
    expected = {"near": (2, "warn"), "muted": (2, "throttled"), "short": (1, "warn"), "free": (4, "ok")}
    assert by_client(evaluate(engines, usage), "broker_id", "level") == expected


@pytest.mark.parametrize(
    ("values", "levels"),
    [
        # entered at once, left after two windows in a row below 0.75
        ([0.85, 0.78, 0.74, 0.76, 0.74, 0.74, 0.74], "warn warn warn warn warn watch watch"),
        # each threshold has its own hysteresis: from critical to warn, not to ok
        ([0.96, 0.88, 0.74, 0.74], "critical critical warn watch"),
        ([0.96, 0.10, 0.10, 0.10], "critical critical ok ok"),
        # a missing window counts as 0; two of them end every level
        ([0.85, None, 0.70], "warn watch"),
        ([0.85, None, 0.78], "warn warn"),
        ([0.85, None, None, 0.78], "warn watch"),
        ([0.59, 0.60, 0.56, 0.56, 0.56], "ok watch watch watch watch"),
    ],
)
def test_levels_are_left_with_hysteresis(engines: Engines, values: list[float | None], levels: str) -> None:
    usage = [Usage(rate=value * 100, window=number) for number, value in enumerate(values) if value is not None]
    rows = evaluate(engines, usage)
    assert " ".join(row["level"] for row in rows) == levels


def test_hysteresis_does_not_depend_on_the_start_of_the_range(engines: Engines) -> None:
    usage = [Usage(rate=rate, window=window) for window, rate in enumerate([96.0, *(91.0,) * 14])]
    full = {row["window_start"]: (row["level"], row["eta_s"]) for row in evaluate(engines, usage)}
    assert [level for level, _ in full.values()] == ["critical"] * 11 + ["warn"] * 4
    later = evaluate(engines, usage, when=TimeRange(9 * WINDOW_MS, 20 * WINDOW_MS, 60))
    assert [(row["level"], row["eta_s"]) for row in later] == list(full.values())[9:]


def test_thresholds_are_configurable(engines: Engines) -> None:
    (row,) = evaluate(engines, [Usage()], thresholds=Thresholds(0.1, 0.2, 0.5))
    assert row["level"] == "critical"


def test_largest_user_of_a_shared_quota_is_named(engines: Engines) -> None:
    shared: dict[str, Any] = {"group": 90.0, "shared_with": 2, "greediest": ("greedy", 72.0)}
    rows = evaluate(engines, [Usage("modest", 9.0, **shared), Usage("greedy", 72.0, **shared)])
    assert by_client(rows, "culprit_client_id", "culprit_share", "utilization") == {
        "modest": ("greedy", 0.8, 0.9),
        "greedy": ("greedy", 0.8, 0.9),
    }
    near = f"at 90.0 % of {RULE}, 10 B/s headroom on broker 1; 2 other clients share this quota"
    assert by_client(rows, "reason") == {
        "modest": f"{near}, greedy takes 80 % of it",
        "greedy": f"{near}, this client takes 80 % of it",
    }


def test_client_reported_throttling_is_added_per_quota(engines: Engines) -> None:
    usage = [Usage(quota_key=key, throttle_ms=1.0, muted_ms=1.0) for key in (PRODUCE, FETCH, REQUEST)]
    felt = [
        Felt(
            produce_throttle_ms=1150.0,
            fetch_throttle_ms=20.0,
            request_latency_ms=300.0,
            queue_time_ms=675.0,
            rebalances=2.0,
            outgoing_bytes=1000.0,
            sender=("one", 0.75),
        )
    ]
    reported = {row["quota_key"]: row for row in evaluate(engines, usage, felt=felt)}
    assert {key: (row["client_throttle_ms_max"], row["impact_reason"]) for key, row in reported.items()} == {
        PRODUCE: (
            1150.0,
            "records waited 675 ms in the producer; client felt produce throttle 1.2 s;"
            " instance one reports 75 % of its bytes",
        ),
        FETCH: (20.0, "2 rebalances; client felt fetch throttle 20 ms"),
        REQUEST: (1150.0, "records waited 675 ms in the producer; 2 rebalances; client felt throttle 1.2 s"),
    }
    row = reported[PRODUCE]
    assert (row["request_latency_ms_max"], row["queue_time_ms_max"], row["rebalances"]) == (300.0, 675.0, 2.0)
    assert (row["outgoing_bytes"], row["incoming_bytes"]) == (1000.0, None)
    assert {row["impact"] for row in reported.values()} == {"delayed"}
    assert {key: (row["busiest_instance"], row["busiest_instance_share"]) for key, row in reported.items()} == {
        PRODUCE: ("one", 0.75),
        FETCH: ("", None),
        REQUEST: ("", None),
    }


def impact_of(engines: Engines, usage: Usage, felt: Sequence[Felt], software: str = "apache-kafka-java") -> Any:
    """Impact and its reason in the newest window."""
    seen = Instance("one", "1", 0, 20 * WINDOW_MS, software=software)
    row = evaluate(engines, [usage], felt=felt, instances=(seen,))[-1]
    return row["impact"], row["impact_reason"]


MUTED_PRODUCER = Usage(rate=100.0, muted_ms=5000.0, throttle_ms=900.0)
MUTED_CONSUMER = Usage(rate=100.0, muted_ms=5000.0, throttle_ms=900.0, quota_key=FETCH, window=5)


def test_throttled_without_harm_has_no_impact(engines: Engines) -> None:
    """Throttled, but the queue stays short and the consumer has nearly caught up."""
    producer = [Felt(produce_throttle_ms=900.0, queue_time_ms=40.0, records_failed=0.0, records_retried=0.0)]
    assert impact_of(engines, MUTED_PRODUCER, producer) == ("none", "client felt produce throttle 900 ms")
    consumer = [Felt(window, fetch_throttle_ms=900.0, records_lag=50.0) for window in range(6)]
    assert impact_of(engines, MUTED_CONSUMER, consumer) == ("none", "client felt fetch throttle 900 ms")


def test_records_that_wait_delay_a_producer_that_is_only_near_its_limit(engines: Engines) -> None:
    found = impact_of(engines, Usage(rate=90.0), [Felt(queue_time_ms=2500.0, records_retried=3.0)])
    assert found == ("delayed", "records waited 2.5 s in the producer; 3 records sent again")


def test_producer_falls_behind_when_records_near_its_delivery_timeout(engines: Engines) -> None:
    waits = [Felt(queue_time_ms=70_000.0)]
    in_time = "records waited 70.0 s in the producer of the 120.0 s after which they are lost"
    assert impact_of(engines, MUTED_PRODUCER, waits) == ("falling-behind", in_time)
    assert impact_of(engines, MUTED_PRODUCER, waits, "librdkafka")[0] == "delayed"  # it waits for 300 s
    assert impact_of(engines, MUTED_PRODUCER, [Felt(queue_time_ms=301_000.0)], "librdkafka")[0] == "losing"


def test_failed_and_refused_records_are_lost(engines: Engines) -> None:
    found = impact_of(engines, MUTED_PRODUCER, [Felt(queue_time_ms=10.0, records_failed=7.0, records_refused=2.0)])
    assert found == ("losing", "7 records failed or expired; 2 sends found no room in the buffer")


def test_consumer_with_a_growing_lag_falls_behind(engines: Engines) -> None:
    growing = Felt(5, fetch_throttle_ms=900.0, records_lag=11_000.0, lag_per_min=2000.0)
    reason = "11000 records behind, 2000 more each minute; client felt fetch throttle 900 ms"
    assert impact_of(engines, MUTED_CONSUMER, [growing]) == ("falling-behind", reason)
    assert impact_of(engines, MUTED_CONSUMER, [growing._replace(lag_per_min=0.0)])[0] == "delayed"


def test_impact_is_unknown_without_telemetry(engines: Engines) -> None:
    assert impact_of(engines, MUTED_PRODUCER, []) == ("unknown", "")


def test_throttling_counts_as_delay_where_nothing_else_is_reported(engines: Engines) -> None:
    """A share consumer of librdkafka reports its fetch throttle and no lag."""
    assert impact_of(engines, MUTED_CONSUMER, [Felt(5, fetch_throttle_ms=900.0)], "librdkafka")[0] == "delayed"


def test_instances_of_the_last_hour_count_and_the_newest_sets_the_software(engines: Engines) -> None:
    hour = 3_600_000
    instances = (
        Instance("gone", "1", 0, hour),  # seen an hour and a window ago
        Instance("muted", "2", hour, hour + 60_000),
        Instance("terminated", "3", hour, 2 * hour - 1, terminated=1),
        Instance("terminated just now", "4", hour, 2 * hour + 10, terminated=1),
        Instance("later", "5", 2 * hour + 60_000, 2 * hour + 60_000),
    )
    usage = [Usage(window=120), Usage("unheard", window=120)]
    rows = evaluate(engines, usage, instances=instances, when=TimeRange(2 * hour, 2 * hour + 120_000, 60))
    reported = by_client(rows, "instances", "software_name", "software_version")
    assert reported == {"app": (2, "kafka-java", "4"), "unheard": (0, "unknown", "unknown")}


def test_other_quotas_have_a_row_only_when_limiting_or_throttling(engines: Engines) -> None:
    usage = [Usage(key, 0.0, limit=None, quota_key=key) for key in (PRODUCE, REQUEST, "controller_mutation_rate")]
    usage += [Usage("limited", 25.0, limit=50.0, quota_key=REQUEST)]
    usage += [Usage("throttled", 0.0, limit=50.0, quota_key=REQUEST, throttle_ms=40.0, muted_ms=900.0)]
    rows = by_client(evaluate(engines, usage), "level", "utilization")
    # The wire does not carry thread time: throttling is visible, the usage is not.
    assert rows == {PRODUCE: ("ok", None), "limited": ("ok", 0.5), "throttled": ("throttled", None)}


def test_rising_rate_has_a_trend_an_estimated_time_to_the_limit_and_burst_credit(engines: Engines) -> None:
    steps = {
        "rising": (10.0, 20.0, 30.0, 40.0, 50.0),
        "flat": (50.0,) * 5,
        "falling": (50.0, 40.0, 30.0, 20.0, 10.0),
        "new": (1.0, 9.0, 17.0, 25.0),
        "started": (5.0, 85.0, 84.0, 86.0, 85.0, 85.0, 84.0),
    }
    usage = [Usage(name, rate, window=window) for name, rates in steps.items() for window, rate in enumerate(rates)]
    unlimited = [Usage("free", 10.0 * window, limit=None, window=window) for window in range(1, 7)]
    rows = evaluate(engines, [*usage, *unlimited, Usage("over", 130.0), Usage("cpu", quota_key=REQUEST)])
    reported = {name: [r for r in rows if r["client_id"] == name] for name in (*steps, "over", "free", "cpu")}
    assert [r["eta_s"] for r in reported["rising"]] == [*[None] * 4, pytest.approx(300.0)]
    without = reported["flat"] + reported["falling"] + reported["free"] + reported["started"]
    assert {r["eta_s"] for r in without} == {None}
    trends = {name: reported[name][-1]["trend_per_min"] for name in (*steps, "free")}
    assert trends == {
        "rising": pytest.approx(10.0),
        "flat": 0.0,
        "falling": pytest.approx(-10.0),
        "new": None,
        "started": None,
        "free": pytest.approx(10.0),
    }
    # A broker measures over at least ten seconds: 50 B/s below the limit are 500 bytes.
    credit = {name: reported[name][-1]["burst_credit"] for name in ("rising", "over", "free", "cpu")}
    assert credit == {"rising": 500.0, "over": 0.0, "free": None, "cpu": None}


def test_no_usage_yields_no_rows(engines: Engines) -> None:
    assert evaluate(engines, []) == []
