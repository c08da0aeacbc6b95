"""A job that exceeds its limit for 25 minutes each night is foreseen: from rows of usage to the forecast's rows."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from spark_jobs.cli import app
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.forecasts import DAY, nightly_job
from tests.kit.usage_rows import FRIDAY_MS, insert_limits, insert_usage

pytestmark = [pytest.mark.spark, pytest.mark.clickhouse]

STEP_MS, LIMIT = 300_000, 1000.0
NIGHTS, CASES = 21, 60
TO_MS = FRIDAY_MS // 86_400_000 * 86_400_000 + 70 * 60_000  # 01:10, an hour before the job
FROM_MS = TO_MS - NIGHTS * 86_400_000


def _insert(clickhouse: RunningClickHouse) -> None:
    before = 14  # steps from midnight to 01:10
    rates = np.concatenate(
        [nightly_job(np.random.default_rng(5000 + case), NIGHTS + 1)[before:][: NIGHTS * DAY] for case in range(CASES)]
    )
    steps = NIGHTS * DAY
    ends = np.tile(FROM_MS + np.arange(1, steps + 1) * STEP_MS - 1000, CASES)
    users = np.repeat([f"job-{case}" for case in range(CASES)], steps)
    at_night = (ends // 3_600_000 % 24 >= 1) & (ends // 3_600_000 % 24 < 3)  # idle, without rows, by day
    size = {"user": users[at_night], "bytes": (rates[at_night] * LIMIT * 60).astype("uint64")}
    insert_usage(
        clickhouse.store, "nights", ends[at_night], rates[at_night] * LIMIT, client_id="app", interval_ms=60_000, **size
    )
    insert_limits(clickhouse.store, "nights", FROM_MS - STEP_MS, {"<default>": LIMIT})


def test_nightly_job_is_flagged_an_hour_before(spark: SparkSession, clickhouse: RunningClickHouse) -> None:
    _insert(clickhouse)
    between = ["--from", str(FROM_MS // 1000), "--to", str(TO_MS // 1000), "--cluster", "nights"]
    done = CliRunner().invoke(app, ["throttle-forecast", "--url", clickhouse.url, *between, "--output", "json"])
    assert (done.exit_code, done.stderr) == (0, ""), done
    rows = json.loads(done.stdout)
    assert len(rows) == CASES
    job = datetime.fromtimestamp(TO_MS / 1000, UTC) + timedelta(hours=1)
    hits = [datetime.fromisoformat(row["hits_limit_at"]) for row in rows if row["hits_limit_at"]]
    assert sum(abs(hit - job) <= timedelta(minutes=10) for hit in hits) >= 45
    assert all(row["within_24h"] >= 0.9 and row["next_hit_at"] for row in rows)
