"""quota-suggest: the default and the outliers of a fleet with a known law of traffic, and quotas that do not fit."""

import json
import math
import time
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from exporters.clickhouse.client import ClickHouse
from exporters.model import ANONYMOUS
from headroom.cli.main import app
from quota_metrics.config.entities import QuotaAlteration
from quota_metrics.simulation.outcomes import OutcomeKind, verdict
from quota_metrics.suggestion.dimension import Fleet
from quota_metrics.what_if.answer import BUDGET_OF_PLAN, WhatIfQuestion, answer
from spark_jobs.jobs import quota_suggest
from spark_jobs.jobs.fleet import names_of
from spark_jobs.options import SuggestOptions
from spark_jobs.reports.suggestions import REPORT
from spark_jobs.time_range import TimeRange
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.kafka.quota_files import quotas_of
from tests.kit.usage_rows import FRIDAY_MS, MINUTE, PRODUCE, insert_limits, insert_usage

pytestmark = [pytest.mark.spark, pytest.mark.clickhouse]

DAY = 1440
MIDNIGHT = FRIDAY_MS // (DAY * MINUTE) * DAY * MINUTE
START = MIDNIGHT - (DAY + 120) * MINUTE  # two dates
CLIENTS, OUTLIERS = 200, (17, 48, 99, 123, 180)
BURST, BURST_MINUTE = 5, 700  # one minute of one client, in 26 hours


def law(minutes: int) -> Any:
    """The rate of each client in each minute: about 100 kB/s, log-normal between clients, with a wave of a day; the
    outliers send 30 times as much."""
    random = np.random.default_rng(11)
    means = 1e5 * np.exp(0.35 * np.clip(random.normal(size=CLIENTS), -2, 2))
    means[list(OUTLIERS)] = 3e6
    wave = 1 + 0.3 * np.sin(np.arange(minutes) / DAY * 2 * np.pi)
    return (means[:, None] * wave * random.uniform(0.95, 1.05, (CLIENTS, minutes))).astype("uint64")


def wanted(rates: Any) -> float:
    """The 99th percentile of five minutes, in which the busiest minute is more than 5 % of the time."""
    return float(np.percentile(rates.reshape(-1, 5).max(axis=1), 99))


Rates = dict[tuple[str, str], Any]  # by user and client-id, of each minute


def insert(
    clickhouse: RunningClickHouse,
    cluster: str,
    start_ms: int,
    rates: Rates,
    muted: dict[str, int] | None = None,
    broker_id: int = 1,
) -> None:
    """`muted`: ms of each minute, by user."""
    minutes = len(next(iter(rates.values())))
    all_rates = np.concatenate(list(rates.values()))
    insert_usage(
        clickhouse.store,
        cluster,
        np.tile(start_ms + np.arange(minutes) * MINUTE, len(rates)),
        all_rates.astype(float),
        user=np.repeat([user for user, _ in rates], minutes),
        client_id=np.repeat([client_id for _, client_id in rates], minutes),
        broker_id=broker_id,
        bytes=all_rates.astype("uint64") * 60,
        interval_ms=MINUTE,
        muted_ms=np.repeat([(muted or {}).get(user, 0) for user, _ in rates], minutes),
    )


def test_default_and_outliers_are_the_planted_ones(spark: SparkSession, clickhouse: RunningClickHouse) -> None:
    names = [f"app-{number:03}" for number in range(CLIENTS)]  # nobody is authenticated
    rates = law(2 * DAY + 120)
    rates[BURST, BURST_MINUTE] = 3_000_000
    for first, last in ((0, DAY + 120), (DAY + 120, 2 * DAY + 120)):
        part = {(ANONYMOUS, name): of for name, of in zip(names, rates[:, first:last], strict=True)}
        insert(clickhouse, "fleet", START + first * MINUTE, part)
    history = rates[:, : DAY + 120]
    planted = {names[number]: wanted(history[number]) for number in OUTLIERS}
    highest = max(wanted(history[number]) for number in range(CLIENTS) if number not in OUTLIERS)

    when = TimeRange(START - 5 * DAY * MINUTE, MIDNIGHT, 60)
    rows = quota_suggest.run(SuggestOptions(clickhouse.url, when, cluster="fleet"))

    default, own = rows[0], rows[1:]
    assert (default["kind"], default["user"], default["client_id"]) == ("default", "", "<default>")
    assert default["suggested_limit"] == pytest.approx(math.ceil(highest / 0.8 / 1e4) * 1e4)  # two digits
    assert default["clients"] == CLIENTS - len(OUTLIERS)
    assert {row["client_id"]: row["demand_high"] for row in own} == pytest.approx(planted)
    assert {row["kind"] for row in own} == {"own"}
    assert all(row["suggested_limit"] == pytest.approx(row["demand_high"] / 0.8, rel=0.05) for row in own)
    assert {(row["confidence"], row["days"]) for row in rows} == {("medium", 2)}
    assert [(row["throttled_share"], row["throttled_clients"]) for row in own] == [(0.0, 0)] * len(own)
    assert default["throttled_clients"] == 1
    # The bytes of that minute take so long, but for those that wait over delivery.timeout.ms (120 s) and fail.
    late_s = 60 * 3e6 / default["suggested_limit"] - 60
    (after_s,) = default["replay_after_s"]
    assert 120 < after_s < late_s
    assert default["throttled_share"] == pytest.approx(after_s / (2 * DAY * 60))  # of the days with usage
    assert "1 of them want more than the limit at their peak, up to 3.0 MB/s" in default["reason"]
    assert "195 of 200 client ids want at most" in default["reason"]
    stored = "SELECT client_id, suggested_limit, reason FROM headroom.quota_suggestions_now WHERE cluster = 'fleet'"
    assert sorted(clickhouse.store.query(stored)) == sorted(
        (row["client_id"], row["suggested_limit"], row["reason"]) for row in rows
    )

    assert REPORT.to_yaml is not None
    declared = quotas_of(REPORT.to_yaml(rows))
    assert [quota.entity for quota in declared[:1]] == [(("client-id", None),)]
    assert {dict(quota.entity)["client-id"]: quota.values[PRODUCE] for quota in declared[1:]} == {
        row["client_id"]: row["suggested_limit"] for row in own
    }

    alone = [QuotaAlteration(quota.entity, quota.values) for quota in declared]
    assert newly_throttled(clickhouse, alone[:1]) == set(planted)  # by the default alone, on the following day
    assert newly_throttled(clickhouse, alone) == set()


def test_names_made_for_one_run_count_as_one_of_their_user(spark: SparkSession) -> None:
    runs = [("a", f"app-{number:08}-9c3e-4339-b41a-d01f280f5bdc-StreamThread-1-producer") for number in range(9)]
    others = [("b", "web"), ("c", "web"), ("c", "etl"), (ANONYMOUS, "x")]
    rows = [("prod", *pair) for pair in (*runs, *others, *others)]
    named = names_of(spark.createDataFrame(rows, ["cluster", "user", "client_id"]))
    assert named == {"prod": Fleet(users=3, clients=5, most_of_user=2)}


def newly_throttled(clickhouse: RunningClickHouse, alterations: list[QuotaAlteration]) -> set[str]:
    question = WhatIfQuestion(alterations, MIDNIGHT, MIDNIGHT + DAY * MINUTE - MINUTE, "fleet")
    what_if = answer(question, ClickHouse((clickhouse.reader,)), time.time_ns() // 1_000_000, BUDGET_OF_PLAN)
    return {outcome.client.client_id for outcome in what_if.outcomes if verdict(outcome) is OutcomeKind.NEWLY}


LIMITS = {"<default>": 2e6, "huge": 1e10, "gone": 5e6, "held": 1e6, "fits": 9e5, "bursts": 1e6}


@pytest.mark.release
def test_quotas_in_force_that_do_not_fit(spark: SparkSession, clickhouse: RunningClickHouse) -> None:
    minutes = 180
    others = {f"u{number:02}": np.full(minutes, 1000 * (900 + 5 * number)) for number in range(12)}
    special = {
        "held": np.full(minutes, 1_000_000),  # wants three times as much
        "wants": np.full(minutes, 2_000_000),  # is held by the default, and wants twice as much
        "full": np.full(minutes, 2_000_000),  # the same, and nobody knows how much it wants
        "huge": np.full(minutes, 400_000),
        "fits": np.full(minutes, 500_000),
        "bursts": np.full(minutes, 300_000),
    }
    muted = {"held": 2 * MINUTE // 3, "wants": MINUTE // 2, "full": MINUTE, "bursts": 1000}
    rates: Rates = {(user, "app"): of for user, of in (others | special).items()}
    # Two that take turns: their user's bucket never has more than 900.
    rates |= {("pair", "a"): np.tile([900_000, 0], minutes // 2), ("pair", "b"): np.tile([0, 900_000], minutes // 2)}
    rates |= {("spread", "app"): np.full(minutes, 1_000_000)}
    insert(clickhouse, "ruled", MIDNIGHT - minutes * MINUTE, rates, muted)
    spread = {("spread", "app"): np.full(minutes, 900_000)}  # less than at the other broker: this one throttles it
    insert(clickhouse, "ruled", MIDNIGHT - minutes * MINUTE, spread, {"spread": MINUTE // 2}, broker_id=2)
    insert_limits(clickhouse.store, "ruled", MIDNIGHT - DAY * MINUTE, LIMITS)
    between = ["--from", str((MIDNIGHT - minutes * MINUTE) // 1000), "--to", str(MIDNIGHT // 1000)]
    asked = ["quotas", "suggest", "--url", clickhouse.url, *between, "--cluster", "ruled", "--output", "json"]
    done = CliRunner().invoke(app, asked)
    assert (done.exit_code, done.stderr) == (0, ""), done
    rows = {row["user"]: row for row in json.loads(done.stdout)}
    assert {user: (row["kind"], row["limit"], row["suggested_limit"]) for user, row in rows.items()} == {
        "<default>": ("default", 2e6, 2e6),  # stays: nobody of the bulk wants more
        "wants": ("own", 2e6, 5e6),
        "full": ("own", 2e6, 2.5e6),
        "held": ("raise", 1e6, 3.8e6),
        "huge": ("too-high", 1e10, 5e5),
        "gone": ("never-used", 5e6, None),
        "fits": ("fits", 9e5, 9e5),
        "bursts": ("raise", 1e6, 1e6),  # never below what it has
    }
    fits = rows["fits"]
    assert [fits[f"utilization_{name}"] for name in ("mean", "p95", "p99", "peak")] == [500 / 900] * 4
    assert (fits["demand_source"], fits["demand_high"], fits["growth_per_week"]) == ("usage", fits["demand_low"], None)
    assert (rows["gone"]["utilization_mean"], rows["held"]["throttled_before"]) == (None, 1.0)
    default = rows["<default>"]
    assert default["clients"] == len(others) + 2  # the pair, and who is spread
    assert (default["demand_low"], default["demand_high"], default["broker_id"]) == (1_000_000, 1_800_000, 2)
    assert rows["held"]["demand_source"] == "usage / (1 - muted share)"
    assert "it was throttled in 100.0 % of the five minutes" in rows["held"]["reason"]
    assert "400.0 kB/s of 10.0 GB/s are used" in rows["huge"]["reason"]
    assert "its demand is not known, and the limit may be below it" in rows["full"]["reason"]
    assert {user: row["confidence"] for user, row in rows.items() if user != "full"} == dict.fromkeys(
        ("<default>", "wants", "held", "huge", "gone", "fits", "bursts"),
        "low",  # three hours
    )
    assert (default["command"], rows["gone"]["command"], fits["command"], rows["bursts"]["command"]) == ("",) * 4
    assert rows["held"]["command"].endswith(
        "--entity-type users --entity-name held --add-config producer_byte_rate=3800000"
    )
    names = ("replay_users", "replay_client_ids", "replay_before_s", "replay_after_s")
    assert [rows["full"][name] for name in names] == [["full"], ["app"], [pytest.approx(minutes * 60, rel=0.1)], [0.0]]
    assert [fits[name] for name in names] == [[], [], [], []]
    assert rows["held"]["throttled_share"] == 0.0
