"""Rows of quota_utilization: what Spark finds of a client in a window meets in one verdict, folded in order."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from exporters.model import UNOWNED
from quota_metrics.verdict.thresholds import Thresholds
from quota_metrics.verdict.window import Telemetry, Window
from spark_jobs.clickhouse import queries
from spark_jobs.time_range import TimeRange
from spark_jobs.transforms.verdicts import COLUMNS, Fold, correlated
from tests.kit.client_windows import client_window

pytestmark = pytest.mark.spark

PRODUCE, FETCH, REQUEST = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
WINDOW_MS = 60_000
WHEN = TimeRange(0, 20 * WINDOW_MS)
TEAMS = [("alice", "owned", "payments"), ("bob", "app", "search")]


def usage(
    client_id: str = "app", rate: float = 50.0, window: int = 0, limit: float | None = 100.0, **more: Any
) -> Window:
    rates = dict.fromkeys(("usage", "usage_p95", "group_usage", "group_p95", "group_last"), rate)
    quota = {"limit": limit, "rule_limit": limit, "state": "none" if limit is None else "limited"}
    names = {"cluster": "c", "user": "alice", "client_id": client_id, "matched_entity": "user=alice"}
    return client_window(**{**names, **rates, **quota, "window_start_ms": window * WINDOW_MS, **more})


def report(window: int = 0, lags: Sequence[tuple[int, float]] = (), **values: Any) -> tuple[Any, ...]:
    """What a client reports in a window. `lags`: windows ago, and records."""
    *reported, _ = Telemetry(**values)
    ago, records = [-ago for ago, _ in lags], [records for _, records in lags]
    return ("c", "alice", "app", window * WINDOW_MS, *reported, ago, records)


def instance(name: str, version: str, first_ms: int, last_ms: int, terminated: int = 0) -> tuple[Any, ...]:
    return ("c", "alice", "app", name, first_ms, last_ms, 1, terminated, "kafka-java", version, "10.0.0.1")


def given(
    spark: SparkSession,
    windows: Sequence[Window],
    *,
    reports: Sequence[tuple[Any, ...]] = (),
    instances: Sequence[tuple[Any, ...]] = (),
    byte_reports: Sequence[tuple[Any, ...]] = (),
) -> pa.Table:
    """What workers are given."""
    joined = correlated(
        usage=spark.createDataFrame(list(windows), queries.USAGE_SCHEMA),
        telemetry=spark.createDataFrame(list(reports), queries.TELEMETRY_SCHEMA),
        instances=spark.createDataFrame(list(instances), queries.INSTANCES_SCHEMA),
        byte_reports=spark.createDataFrame(list(byte_reports), queries.BYTE_REPORTS_SCHEMA),
        teams=spark.createDataFrame(TEAMS, queries.TEAMS_SCHEMA),
        observed=spark.createDataFrame([], queries.OBSERVED_SCHEMA),
    )
    return joined.toArrow()


def verdicts(
    spark: SparkSession,
    windows: Sequence[Window],
    *,
    when: TimeRange = WHEN,
    thresholds: Thresholds = Thresholds(),
    full_s: Mapping[str, float] | None = None,
    **known: Sequence[tuple[Any, ...]],
) -> list[dict[str, Any]]:
    """One row per client, quota key and window. `known`: beside the windows, as `given` has it."""
    batches = given(spark, windows, **known).to_batches()
    fold = Fold(when, thresholds, "run", full_s or {})
    rows = [row for batch in fold(batches) for row in batch.to_pylist()]
    keys = {tuple(row[name] for name in ("client_id", "quota_key", "window_start")) for row in rows}
    assert len(keys) == len(rows)
    assert all(list(row) == ["run", *COLUMNS] for row in rows)
    return sorted(rows, key=lambda row: (row["window_start"], row["client_id"]))


def by_client(rows: list[dict[str, Any]], *names: str) -> dict[str, Any]:
    """The values of the columns by client-id; a scalar if there is only one column."""
    reported = {row["client_id"]: tuple(row[name] for name in names) for row in rows}
    assert len(reported) == len(rows)
    return {client_id: values[0] if len(names) == 1 else values for client_id, values in reported.items()}


def test_rows_name_the_team_of_their_client(spark: SparkSession) -> None:
    rows = verdicts(spark, [usage("owned"), usage("app")], thresholds=Thresholds(0.1, 0.2, 0.5))
    assert by_client(rows, "team", "level") == {"owned": ("payments", "critical"), "app": (UNOWNED, "critical")}


def test_open_window_is_evaluated_over_its_elapsed_time(spark: SparkSession) -> None:
    """Muted 1 % of the minute that is there, not of the two minutes that the window will have."""
    window = usage(muted_ms=600.0, throttle_ms=600.0, elapsed_s=60)
    (row,) = verdicts(spark, [window], when=TimeRange(0, WINDOW_MS, 120))
    assert (row["level"], row["complete"], row["window_s"]) == ("throttled", 0, 120)
    (row,) = verdicts(spark, [window._replace(elapsed_s=120)], when=TimeRange(0, 2 * WINDOW_MS, 120))
    assert (row["level"], row["complete"]) == ("critical", 1)


def test_hysteresis_does_not_depend_on_the_start_of_the_range(spark: SparkSession) -> None:
    windows = [usage(rate=rate, window=window) for window, rate in enumerate([96.0, *(91.0,) * 14])]
    all_rows = {row["window_start"]: (row["level"], row["eta_s"]) for row in verdicts(spark, windows)}
    assert [level for level, _ in all_rows.values()] == ["critical"] * 11 + ["warn"] * 4
    later = verdicts(spark, windows, when=TimeRange(9 * WINDOW_MS, 20 * WINDOW_MS))
    assert [(row["level"], row["eta_s"]) for row in later] == list(all_rows.values())[9:]


def test_client_reported_throttling_is_added_per_quota(spark: SparkSession) -> None:
    windows = [usage(quota_key=key, throttle_ms=1.0, muted_ms=1.0) for key in (PRODUCE, FETCH, REQUEST)]
    felt = report(
        produce_throttle_ms=1150.0,
        fetch_throttle_ms=20.0,
        request_latency_ms=300.0,
        queue_time_ms=675.0,
        rebalances=2.0,
        outgoing_bytes=1000.0,
        top_sender="one",
        top_sender_share=0.75,
    )
    rows = {row["quota_key"]: row for row in verdicts(spark, windows, reports=[felt])}
    names = ("client_throttle_ms_max", "impact", "busiest_instance", "busiest_instance_share")
    assert {key: tuple(row[name] for name in names) for key, row in rows.items()} == {
        PRODUCE: (1150.0, "delayed", "one", 0.75),
        FETCH: (20.0, "delayed", "", None),
        REQUEST: (1150.0, "delayed", "", None),
    }
    row = rows[PRODUCE]
    assert row["impact_reason"] == (
        "records waited 675 ms in the producer; client felt produce throttle 1.2 s;"
        " instance one reports 75 % of its bytes"
    )
    assert (row["request_latency_ms_max"], row["queue_time_ms_max"], row["rebalances"]) == (300.0, 675.0, 2.0)
    assert (row["outgoing_bytes"], row["incoming_bytes"]) == (1000.0, None)


def test_lag_grows_by_the_minute_whatever_the_window(spark: SparkSession) -> None:
    throttled = usage(rate=100.0, window=6, quota_key=FETCH, muted_ms=5000.0, throttle_ms=900.0)
    lags = [(5 - n, 1000.0 + 2000.0 * n) for n in range(6)]
    felt = report(6, lags, fetch_throttle_ms=900.0, records_lag=11_000.0)
    (row,) = verdicts(spark, [throttled], reports=[felt])
    reason = "11000 records behind, 2000 more each minute; client felt fetch throttle 900 ms"
    assert (row["impact"], row["impact_reason"]) == ("falling-behind", reason)
    (row,) = verdicts(spark, [throttled], reports=[felt], when=TimeRange(0, 20 * WINDOW_MS, 120))
    assert row["records_lag_per_min"] == pytest.approx(1000.0)


def test_instances_of_the_last_hour_count_and_the_newest_sets_the_software(spark: SparkSession) -> None:
    hour = 3_600_000
    instances = [
        instance("gone", "1", 0, hour),  # seen an hour and a window ago
        instance("muted", "2", hour, hour + 60_000),
        instance("terminated", "3", hour, 2 * hour - 1, terminated=1),
        instance("terminated just now", "4", hour, 2 * hour + 10, terminated=1),
        instance("later", "5", 2 * hour + 60_000, 2 * hour + 60_000),
    ]
    windows = [usage(window=120), usage("unheard", window=120)]
    rows = verdicts(spark, windows, instances=instances, when=TimeRange(2 * hour, 2 * hour + 120_000))
    reported = by_client(rows, "instances", "software_name", "software_version")
    assert reported == {"app": (2, "kafka-java", "4"), "unheard": (0, "unknown", "unknown")}


def test_instances_and_what_they_report_are_given_once_however_many_windows_and_quotas_there_are(
    spark: SparkSession,
) -> None:
    """Else a client of thousands of instances takes the memory of a worker."""
    names = [f"instance-{number}" for number in range(100)]
    instances = [instance(name, "4.3.1", 0, WINDOW_MS) for name in names]
    byte_reports = [("c", "alice", "app", name, WINDOW_MS, 1.0, 1.0) for name in names]
    few, many = (
        [usage(window=window, quota_key=key) for window in range(number) for key in (PRODUCE, FETCH)]
        for number in (1, 40)
    )
    of_few, of_many = (
        given(spark, windows, instances=instances, byte_reports=byte_reports).nbytes - given(spark, windows).nbytes
        for windows in (few, many)
    )
    assert of_many == pytest.approx(of_few, rel=0.1)


def test_rising_rate_has_a_trend_an_estimated_time_to_the_limit_and_burst_credit(spark: SparkSession) -> None:
    steps = {
        "rising": (10.0, 20.0, 30.0, 40.0, 50.0),
        "flat": (50.0,) * 5,
        "falling": (50.0, 40.0, 30.0, 20.0, 10.0),
        "new": (1.0, 9.0, 17.0, 25.0),
        "started": (5.0, 85.0, 84.0, 86.0, 85.0, 85.0, 84.0),
    }
    windows = [usage(name, rate, window) for name, rates in steps.items() for window, rate in enumerate(rates)]
    windows += [usage("free", 10.0 * window, window, limit=None) for window in range(1, 7)]
    windows += [usage("over", 130.0), usage("cpu", quota_key=REQUEST)]
    rows = verdicts(spark, windows)
    of_client = {name: [r for r in rows if r["client_id"] == name] for name in (*steps, "over", "free", "cpu")}
    assert [r["eta_s"] for r in of_client["rising"]] == [*[None] * 4, pytest.approx(300.0)]
    without = of_client["flat"] + of_client["falling"] + of_client["free"] + of_client["started"]
    assert {r["eta_s"] for r in without} == {None}
    trends = {name: of_client[name][-1]["trend_per_min"] for name in (*steps, "free")}
    assert trends == {
        "rising": pytest.approx(10.0),
        "flat": 0.0,
        "falling": pytest.approx(-10.0),
        "new": None,
        "started": None,
        "free": pytest.approx(10.0),
    }
    # A broker measures over at least ten seconds: 50 B/s below the limit are 500 bytes.
    credit = {name: of_client[name][-1]["burst_credit"] for name in ("rising", "over", "free", "cpu")}
    assert credit == {"rising": 500.0, "over": 0.0, "free": None, "cpu": None}
    (row,) = verdicts(spark, [usage()], full_s={"c": 30.0})  # as many windows as the cluster says
    assert row["burst_credit"] == 1500.0
