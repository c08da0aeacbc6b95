"""Random rows with hostile values: the job, the live view and plain loops yield the same levels."""

from __future__ import annotations

import math
import random
import time
from collections import defaultdict
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from spark_jobs.jobs import quota_headroom
from spark_jobs.options import Options
from spark_jobs.time_range import TimeRange
from tests.kit.clickhouse import RunningClickHouse
from tests.spark_jobs.clickhouse.naive_usage import Row, Verdict, verdicts
from tests.spark_jobs.clickhouse.test_usage_query import START, drawn, insert

pytestmark = [pytest.mark.spark, pytest.mark.clickhouse]

MINUTE = 60_000
CLUSTER = "agreement"
SEEDS = range(12)


class ClientLevel(NamedTuple):
    """A client on its worst broker."""

    broker_id: int
    level: str
    utilization: float | None
    utilization_p95: float | None
    muted_ms: float


def rows_of(seed: int, start: int) -> list[Row]:
    """Rows around the minute from `start` on, users named by seed."""
    random_ = random.Random(seed)
    limit = random_.choice([300.0, 500.0, 800.0, 1500.0, 5000.0])
    return [
        row._replace(
            at_ms=row.at_ms - START + start,
            user=f"{row.user}-{seed}",
            limit=limit if row.limit_known else None,
            bucket_user=f"{row.user}-{seed}",
        )
        for row in drawn(random_)
    ]


def expected_levels(found: dict[tuple[str, str, int, int], Verdict]) -> dict[tuple[str, str], ClientLevel]:
    """Expected result by plain loops over each client's usage at each broker."""
    brokers: dict[tuple[str, str], list[tuple[tuple[bool, float, float, int], ClientLevel]]] = defaultdict(list)
    for (user, client_id, broker_id, _), verdict in found.items():
        limit = verdict.limit
        usage, p95 = (verdict.group_usage / limit, verdict.group_p95 / limit) if limit else (None, None)
        most = -1.0 if usage is None or p95 is None else max(usage, p95)
        throttled = verdict.muted_ms >= MINUTE / 100
        level = next(
            (name for least, name in ((0.95, "critical"), (0.8, "warn"), (0.6, "watch")) if most >= least), "ok"
        )
        if verdict.state == "unknown":
            level = "unknown"
        if verdict.muted_ms > 0:
            level = "throttled" if throttled else "critical"
        one = ClientLevel(broker_id, level, usage, p95, verdict.muted_ms)
        brokers[user, client_id].append(((throttled, most, verdict.muted_ms, -broker_id), one))
    return {client: max(places)[1] for client, places in brokers.items()}


def close(one: ClientLevel, other: ClientLevel) -> bool:
    return all(
        a == b or (isinstance(a, int | float) and isinstance(b, int | float) and math.isclose(a, b, rel_tol=1e-9))
        for a, b in zip(one, other, strict=True)
    )


def test_job_live_view_and_reference_agree(spark: SparkSession, clickhouse: RunningClickHouse) -> None:
    start = (time.time_ns() // 1_000_000 // MINUTE - 20) * MINUTE
    rows = [row for seed in SEEDS for row in rows_of(seed, start)]
    insert(clickhouse.store, rows, CLUSTER)
    expected = expected_levels(verdicts(rows, start, start + MINUTE, MINUTE))
    quota_headroom.run(Options(clickhouse.url, TimeRange(start, start + MINUTE, 60), cluster=CLUSTER))
    job = clickhouse.store.query(
        "SELECT user, client_id, broker_id, toString(instant_level), utilization, utilization_p95, throttled_s * 1000"
        f" FROM headroom.quota_utilization_committed WHERE cluster = '{CLUSTER}'"
    )
    view = clickhouse.store.query(
        "SELECT user, client_id, broker_id, toString(level), utilization, utilization_p95, toFloat64(muted_ms)"
        f" FROM headroom.headroom_by_minute WHERE window_start = toDateTime({start // 1000}, 'UTC')"
        f" AND cluster = '{CLUSTER}'"
    )
    assert len(expected) > 50
    assert {one.level for one in expected.values()} >= {"unknown", "ok", "watch", "critical", "throttled"}
    for found in (job, view):
        by_client = {(row[0], row[1]): ClientLevel(*row[2:]) for row in found}
        assert by_client.keys() == expected.keys()
        assert [
            (key, by_client[key], expected[key]) for key in expected if not close(by_client[key], expected[key])
        ] == []
