"""The jobs over weeks and their reports, end to end on a real server with two days of rows per minute."""

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from spark_jobs.cli import app
from spark_jobs.clickhouse.queries import USAGE_SCHEMA
from spark_jobs.jobs.throttle_forecast import forecasts
from spark_jobs.jobs.usage_windows import history_of
from spark_jobs.time_range import STEP_MS, TimeRange
from spark_jobs.transforms.demand import MUTED_SHARE, needs
from spark_jobs.transforms.forecast_model import FEWEST_STEPS
from spark_jobs.transforms.forecast_scores import METHODS
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.client_windows import client_window
from tests.kit.forecasts import DAY, nightly_job
from tests.kit.usage_rows import FRIDAY_MS, MINUTE, PRODUCE, insert_limits, insert_usage

pytestmark = [pytest.mark.spark, pytest.mark.clickhouse, pytest.mark.release]

DAYS = 3
END = FRIDAY_MS
START = END - DAYS * 1440 * MINUTE
LIMIT = 1000.0
HISTORY = (
    "cluster string, source string, quota_key string, user string, client_id string, broker_id int, step long,"
    " limit double, matched_entity string, mean double, p95 double, muted_ms double"
)


KINDS = ("idle", "wave", "rising", "full", "held", "bursts", "capped")
MINUTES = np.arange(DAYS * 1440)
MOST_SENT = 0.99 * LIMIT  # of `capped`: usage alone never reaches the limit
CAPPED_WANTS = 800 + 400 * np.sin(MINUTES / 1440 * 2 * np.pi)  # 800 at the end, and above the limit two hours later


def rates(kind: str) -> Any:
    """The rate of each minute: flat and far below the limit, a daily wave, or flat with a rise in the last hours."""
    random = np.random.default_rng(len(kind))
    if kind == "capped":
        return np.minimum(CAPPED_WANTS, MOST_SENT)
    base = {
        "idle": np.full(len(MINUTES), 50.0),
        "wave": 500 + 200 * np.sin(MINUTES / 1440 * 2 * np.pi),
        "rising": np.where(len(MINUTES) - 180 > MINUTES, 300.0, 300.0 + (MINUTES - len(MINUTES) + 180) * 3.3),
        "full": np.full(len(MINUTES), LIMIT),
        "held": np.full(len(MINUTES), LIMIT),  # wants three times as much, so it is muted for two thirds of the time
        "bursts": np.full(len(MINUTES), 300.0),  # of a second, each two hours: then it is muted for a second
    }[kind]
    return base + random.normal(0, 5, len(MINUTES))


@pytest.fixture(scope="module")
def weeks(clickhouse: RunningClickHouse) -> str:
    for kind in KINDS:
        minute_rates = rates(kind)
        count = len(minute_rates)
        muted = {
            "full": [MINUTE if rate > LIMIT else 0 for rate in minute_rates],
            "held": [2 * MINUTE // 3] * count,
            "bursts": [1000 if at % 120 == 0 else 0 for at in range(count)],
            "capped": (MINUTE * np.maximum(1 - MOST_SENT / CAPPED_WANTS, 0)).astype(int).tolist(),
        }.get(kind, 0)
        columns = {"user": kind, "client_id": "app", "bytes": (minute_rates * 60).astype("uint64")}
        at_ms = range(START, END, MINUTE)
        insert_usage(clickhouse.store, "weeks", at_ms, minute_rates, interval_ms=MINUTE, muted_ms=muted, **columns)
    insert_limits(clickhouse.store, "weeks", START - MINUTE, dict.fromkeys(KINDS, LIMIT))
    return clickhouse.url


def invoke(
    name: str, url: str, *more: str, from_ms: int = START, to_ms: int = END, cluster: str = "weeks"
) -> list[dict[str, Any]]:
    between = ["--from", str(from_ms // 1000), "--to", str(to_ms // 1000), "--cluster", cluster]
    done = CliRunner().invoke(app, [name, "--url", url, *between, "--output", "json", *more])
    assert (done.exit_code, done.stderr) == (0, ""), done
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def test_forecast_of_rising_usage_reaches_the_limit(
    spark: SparkSession, weeks: str, clickhouse: RunningClickHouse
) -> None:
    (idle,) = invoke("throttle-forecast", weeks, "--user", "idle", "--client-id", "app")  # its bucket has no client id
    rows = {row["user"]: row for row in invoke("throttle-forecast", weeks)}
    assert idle == rows["idle"]
    assert rows["rising"]["confidence"] > 0.5
    hit = [name for name in ("rising", "idle", "wave", "capped") if rows[name]["hits_limit_at"] is not None]
    assert hit == ["rising", "capped"]
    assert rows["idle"]["confidence"] == 0.0
    assert max(rows["capped"]["p50"]) > 1.0  # by what it wants: it never sent as much as the limit
    assert (rows["held"]["confidence"], rows["held"]["within_7d"]) == (1.0, 1.0)
    assert re.search(r"\(throttled, wanting about (29|30)\d%\): it is reached", rows["held"]["reason"])
    stored = "SELECT user, confidence FROM headroom.throttle_forecast WHERE cluster = 'weeks' ORDER BY user"
    kept = {row[0]: row[1] for row in clickhouse.store.query(stored)}
    assert kept == {name: row["confidence"] for name, row in rows.items()}


def test_backtest_scores_better_than_simple_methods(spark: SparkSession, weeks: str) -> None:
    rows = invoke("backtest", weeks)
    assert [row["method"] for row in rows] == ["headroom", *sorted(name for name in METHODS if name != "headroom")]
    assert rows[0]["brier_24h"] is not None
    assert rows[0]["pinball"] < min(row["pinball"] for row in rows[1:])


def test_end_within_a_minute_adds_no_demand(spark: SparkSession, weeks: str) -> None:
    """Of few hours, where each five minutes count."""
    rows = invoke("quota-suggest", weeks, from_ms=END - 240 * MINUTE, to_ms=END - 3 * MINUTE - 40_000)
    (rising,) = (row for row in rows if row["user"] == "rising")
    assert rising["demand_high"] == rising["demand_low"]
    assert rising["utilization_mean"] < rising["utilization_p99"]


def test_forecast_is_by_the_limit_in_force(spark: SparkSession) -> None:
    """One rule was raised since its newest row, one removed; those of b were not recorded; a run ended a day ago."""
    run = "wordcount-application-c02ff79f-9c3e-4339-b41a-d01f280f5bdc-StreamThread-1-producer"
    clients = (("a", "raised", "", 0), ("a", "removed", "", 0), ("b", "old", run, 0), ("b", "ended", run, -1 - DAY))
    rows = [
        (cluster, "gateway", PRODUCE, user, client_id, 1, step, LIMIT, f"user={user}", 0.8, 0.8, 0.0)
        for cluster, user, client_id, first in clients
        for step in range(first, first + FEWEST_STEPS)
    ]
    limits = {"a": {(PRODUCE, "user=raised"): 4 * LIMIT}}
    made = forecasts(spark.createDataFrame(rows, HISTORY), FEWEST_STEPS - 1, limits).collect()
    assert sorted((row["user"], row["limit"], row["utilization"]) for row in made) == [
        ("old", LIMIT, 0.8),
        ("raised", 4 * LIMIT, 0.2),
    ]


def test_growth_is_that_from_week_to_week(spark: SparkSession) -> None:
    """Weekends are low, limits differ by the day, and the range begins and ends within days of which nothing counts."""

    def used(day: int, growth: float) -> float:
        return (10.0 if day % 7 in (2, 3) else 100.0) + growth * (day // 7)  # 1970-01-03 was a Saturday

    first, last = 8, 22
    rows = [
        ("c", "gateway", PRODUCE, name, "", 1, hour * 12, limit, "user", rate / limit, rate / limit, 0.0)
        for name, end, growth in (("same", last, 0.0), ("grows", last, 20.0), ("young", last - 3, 20.0))
        for hour in range((first * 24) - 9, (end + 1) * 24 + 9)
        for day, limit in ((hour // 24, 500.0 + hour // 24),)
        for rate in (used(day, growth) if first <= day <= last else 5000.0,)
    ]
    when = TimeRange((first * 24 - 9) * 60 * MINUTE, ((last + 1) * 24 + 9) * 60 * MINUTE)
    growth = {
        row["user"]: row["growth_per_week"] for row in needs(spark.createDataFrame(rows, HISTORY), when).collect()
    }
    mean = np.mean([used(day, 20.0) for day in range(first, last + 1)])
    assert growth == {"same": 0.0, "grows": pytest.approx(20 / mean), "young": None}


def test_bucket_is_throttled_with_any_of_its_members(spark: SparkSession) -> None:
    """The broker mutes one of two equal members half of the time, until the limit is doubled; the other, who comes
    first, never."""
    members = [
        client_window(1.0, window_start_ms=step * 300_000, limit=limit, user=user, usage_rank=rank, muted_ms=muted_ms)
        for step, limit, held_ms in ((0, 2e5, 150_000.0), (1, 2e5, 150_000.0), (2, 2e5, 150_000.0), (3, 4e5, 0.0))
        for user, rank, muted_ms in (("free", 1, 0.0), ("held", 2, held_ms), ("idle", 3, 0.0))
    ]
    (bucket,) = needs(history_of(spark.createDataFrame(members, USAGE_SCHEMA)), TimeRange(0, 4 * 300_000)).collect()
    assert (bucket["throttled_share"], bucket["demand_high"] / bucket["demand_low"]) == (0.75, 2.0)
    assert (bucket["demand_source"], bucket["limit"], bucket["throttled_limit"]) == (MUTED_SHARE, 4e5, 2e5)


def test_bucket_of_bursts_used_at_least_the_mean_on_the_days_of_all_brokers(spark: SparkSession) -> None:
    """Of a burst within five minutes the 95th percentile of the seconds is 0."""
    rows = [
        ("c", "gateway", PRODUCE, "u", "", broker, day * 288, 500.0, "user", 0.2, 0.0, 0.0)
        for broker, day in ((1, 3), (2, 5))
    ]
    (bucket,) = needs(spark.createDataFrame(rows, HISTORY), TimeRange(0, 6 * 1440 * MINUTE)).collect()
    assert [bucket[name] for name in ("demand_low", "demand_high", "usage_p95", "usage_peak")] == [100.0] * 4
    assert (bucket["days"], bucket["first_day"], bucket["last_day"]) == (1, 3, 5)


def test_inventory_lists_clients_without_telemetry(spark: SparkSession, weeks: str) -> None:
    rows = invoke("client-inventory", weeks)
    assert [(row["user"], row["status"]) for row in rows] == [(kind, "no telemetry") for kind in sorted(KINDS)]
    assert invoke("client-inventory", weeks, "--top", "2") == rows[:2]
    assert invoke("client-inventory", weeks, "--user", "rising", "--client-id", "app") == [rows[5]]


NIGHTS, CASES = 21, 60
NIGHT_MS = FRIDAY_MS // 86_400_000 * 86_400_000 + 70 * 60_000  # 01:10, an hour before the job
NIGHTS_FROM_MS = NIGHT_MS - NIGHTS * 86_400_000


def test_nightly_job_is_flagged_an_hour_before(spark: SparkSession, clickhouse: RunningClickHouse) -> None:
    """It exceeds its limit for 25 minutes each night."""
    before = 14  # steps from midnight to 01:10
    rates = np.concatenate(
        [nightly_job(np.random.default_rng(5000 + case), NIGHTS + 1)[before:][: NIGHTS * DAY] for case in range(CASES)]
    )
    steps = NIGHTS * DAY
    ends = np.tile(NIGHTS_FROM_MS + np.arange(1, steps + 1) * STEP_MS - 1000, CASES)
    users = np.repeat([f"job-{case}" for case in range(CASES)], steps)
    at_night = (ends // 3_600_000 % 24 >= 1) & (ends // 3_600_000 % 24 < 3)  # idle, without rows, by day
    size = {"user": users[at_night], "bytes": (rates[at_night] * LIMIT * 60).astype("uint64")}
    insert_usage(
        clickhouse.store, "nights", ends[at_night], rates[at_night] * LIMIT, client_id="app", interval_ms=60_000, **size
    )
    insert_limits(clickhouse.store, "nights", NIGHTS_FROM_MS - STEP_MS, {"<default>": LIMIT})
    rows = invoke("throttle-forecast", clickhouse.url, from_ms=NIGHTS_FROM_MS, to_ms=NIGHT_MS, cluster="nights")
    assert len(rows) == CASES
    job = datetime.fromtimestamp(NIGHT_MS / 1000, UTC) + timedelta(hours=1)
    hits = [datetime.fromisoformat(row["hits_limit_at"]) for row in rows if row["hits_limit_at"]]
    assert sum(abs(hit - job) <= timedelta(minutes=10) for hit in hits) >= 45
    assert all(row["within_24h"] >= 0.9 and row["next_hit_at"] for row in rows)
