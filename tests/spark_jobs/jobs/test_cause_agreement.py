"""The live minute and the job agree, minute by minute: of planted changes they tell the same cause, and of some of the
fleets that `python -m tests.fleets 2000` compares each path computes what the reference does."""

import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from quota_metrics.verdict.client_signals import metrics_of
from quota_metrics.verdict.thresholds import CAUSE_WINDOWS
from spark_jobs.jobs import quota_headroom
from spark_jobs.options import HeadroomOptions
from spark_jobs.time_range import TimeRange
from tests.fleets.differences import compared
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.levels import compute_levels, now_ms, sample, write
from tests.kit.points import TIME, points

pytestmark = [pytest.mark.spark, pytest.mark.clickhouse]

MINUTE_MS = 60_000
MINUTES = 13
REPORTS = 6


class Instance(NamedTuple):
    """Seen from `first_s` until `last_s`, seconds after the onset; reports `sent` bytes in each minute after it."""

    first_s: int
    last_s: int
    version: str
    ended: bool
    sent: float


OLD_STAYS = Instance(-1500, 900, "3.9.1", ended=False, sent=10.0)
OLD_ENDS = Instance(-1500, 5, "3.9.1", ended=True, sent=0.0)
NEW = Instance(5, 900, "4.3.1", ended=False, sent=90.0)
# Of `rollout` five of ten instances are replaced, which then report 90 % of the bytes; `restart` has another one.
INSTANCES = {
    "rollout": [OLD_STAYS] * 5 + [OLD_ENDS] * 5 + [NEW] * 5,
    "restart": [OLD_ENDS, NEW._replace(version="3.9.1")],
}


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
    live = causes_in(clickhouse, "headroom_by_minute")
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
        of_this_minute = of_instances if minute > 6 else {}
        of_minute = {client: text for (client, at_ms), text in live.items() if at_ms == start_ms + minute * MINUTE_MS}
        assert {client: text for client, text in of_minute.items() if text} == (
            expected | of_this_minute if 6 <= minute <= 6 + CAUSE_WINDOWS else {}
        ), minute
    # The job, of ranges that begin before, at and after the onset.
    for first in (0, 6, 9, 11):
        when = TimeRange(start_ms + first * MINUTE_MS, start_ms + MINUTES * MINUTE_MS, 60)
        quota_headroom.run(HeadroomOptions(clickhouse.url, when, cluster="cause"))
        of_job = causes_in(clickhouse, "quota_utilization_committed", when.from_ms)
        assert of_job == {key: text for key, text in live.items() if key[1] >= when.from_ms}, first


def store_instances(clickhouse: RunningClickHouse, begin_ms: int) -> None:
    for user, instance in ((user, instance) for user, fleet in INSTANCES.items() for instance in fleet):
        key = uuid.uuid4()
        clickhouse.store.query(
            "INSERT INTO headroom.client_instances (cluster, client_instance_id, client_id, principal, software_name,"
            " software_version, source_address, first_seen, last_seen, terminated, pushes) SELECT 'cause',"
            f" '{key}', 'app', '{user}', 'java', '{instance.version}', '10.0.0.1',"
            f" fromUnixTimestamp64Milli({begin_ms + 1000 * instance.first_s}),"
            f" fromUnixTimestamp64Milli({begin_ms + 1000 * instance.last_s}), {int(instance.ended)}, 1"
        )
        if instance.sent:
            columns: dict[str, Any] = {
                "metric": [metrics_of("outgoing_bytes")[0]] * REPORTS,
                "principal": [user] * REPORTS,
                "client_instance_id": pa.array([key.bytes] * REPORTS, pa.binary(16)),
                "series_id": pa.array([key.int % 2**60 + minute for minute in range(REPORTS)], pa.uint64()),
                "ts": pa.array([begin_ms + minute * MINUTE_MS + 5000 for minute in range(REPORTS)], TIME),
                "value": [instance.sent] * REPORTS,
            }
            clickhouse.store.insert("points", points("cause", REPORTS, **columns), token=str(key))


def causes_in(clickhouse: RunningClickHouse, table: str, from_ms: int = 0) -> dict[tuple[tuple[str, str], int], str]:
    rows: list[Any] = clickhouse.store.query(
        f"SELECT user, client_id, toInt64(toUnixTimestamp(window_start)) * 1000, cause FROM headroom.{table}"
        f" WHERE cluster = 'cause' AND toUnixTimestamp(window_start) >= {from_ms // 1000}"
    )
    return {((user, client_id), at_ms): text for user, client_id, at_ms, text in rows}


@pytest.mark.parametrize(("seed", "cases"), [(1, 60), pytest.param(2, 240, marks=pytest.mark.release)])
def test_every_path_computes_what_the_reference_does(
    spark: SparkSession, clickhouse: RunningClickHouse, seed: int, cases: int
) -> None:
    assert compared(clickhouse, seed, cases) == []
