"""team-report: the sums of all teams and of nobody's clients are the metered bytes, to the byte."""

import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from exporters.model import UNOWNED
from spark_jobs.jobs import team_report
from spark_jobs.options import TeamOptions
from spark_jobs.time_range import TimeRange
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.usage_rows import FRIDAY_MS, insert_usage

pytestmark = [pytest.mark.spark, pytest.mark.clickhouse]

CLUSTER = "teams"
HOUR_MS = 3_600_000
CLIENTS = [("payments-1", "app"), ("payments-2", "app"), ("", "indexer-1"), ("", "stray"), ("\u00fc[1]", "x")]
OWNERS = """
owners:
  - {team: payments, user: "payments-*", contact: p@example.org, page: "https://example.org/p"}
  - {team: search, client-id: "indexer-?"}
prices: {in_per_gb: 2.0, out_per_gb: 0.5}
capacity: {in_bytes_per_s: 1.0e13, out_bytes_per_s: 1.0e14}
"""


def test_teams_and_unowned_are_the_metered_bytes(
    spark: SparkSession, clickhouse: RunningClickHouse, tmp_path: Path
) -> None:
    owners = tmp_path / "owners.yaml"
    owners.write_text(OWNERS)
    draw = random.Random(5)
    usage = [  # of each hour, client and key, with odd numbers of bytes that no float holds
        (FRIDAY_MS + hour * HOUR_MS, user, client_id, key, draw.randrange(2**53, 2**55) | 1)
        for hour in range(10)
        for user, client_id in CLIENTS
        for key in ("producer_byte_rate", "consumer_byte_rate")
    ]
    at_ms, users, client_ids, keys, sizes = zip(*usage, strict=True)
    columns: dict[str, Any] = {
        "user": users,
        "client_id": client_ids,
        "quota_key": keys,
        "bytes": sizes,
        "requests": range(len(sizes)),
    }
    for _ in range(2):  # a replay stores rows twice
        insert_usage(clickhouse.store, CLUSTER, at_ms, 1.0, throttled_requests=3, muted_ms=500, **columns)
    when = TimeRange(FRIDAY_MS, FRIDAY_MS + 10 * HOUR_MS, 60)
    rows = team_report.run(TeamOptions(clickhouse.url, when, cluster=CLUSTER, owners=owners))
    teams = {row["team"]: row for row in rows}
    assert set(teams) == {"payments", "search", UNOWNED}
    assert sum(row["bytes_in"] + row["bytes_out"] for row in rows) == sum(sizes)
    of_payments = [
        size
        for size, user, key in zip(sizes, users, keys, strict=True)
        if user.startswith("payments-") and key == "producer_byte_rate"
    ]
    payments = teams["payments"]
    assert payments["bytes_in"] == sum(of_payments)
    assert (payments["clients"], payments["throttled_requests"], payments["throttled_s"]) == (2, 120, 20.0)
    assert (payments["contact"], payments["page"]) == ("p@example.org", "https://example.org/p")
    assert payments["cost"] == pytest.approx(payments["bytes_in"] * 2e-9 + payments["bytes_out"] * 0.5e-9)
    assert sum(row["requests"] for row in rows) == sum(range(len(sizes)))
    assert payments["capacity_share"] == pytest.approx(payments["bytes_in"] / (1e13 * 36_000))
    assert sum(row["share"] for row in rows) == pytest.approx(1.0)
    assert payments["growth_per_week"] is None  # less than a week
    assert teams[UNOWNED]["clients"] == 2


@pytest.mark.parametrize("source", ["gateway", "jmx"])
def test_throttle_times_that_overlap_count_once(
    spark: SparkSession, clickhouse: RunningClickHouse, tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str
) -> None:
    """Others announce throttle times and do not count the muted time."""
    owners, cluster = tmp_path / "owners.yaml", f"announced-{source}"
    owners.write_text(OWNERS)
    ends = [FRIDAY_MS + 1000 * at for at in (1, 2, 3, 60)]
    usage = {"throttle_ms": 1500.0, "source": source, "interval_ms": [0, 1000, 0, 1000]}
    insert_usage(clickhouse.store, cluster, ends, 1.0, user="payments-1", client_id="app", **usage)
    when = TimeRange(FRIDAY_MS, FRIDAY_MS + HOUR_MS, 60)
    options = TeamOptions(clickhouse.url, when, cluster=cluster, owners=owners, source=source)
    assert [row["throttled_s"] for row in team_report.run(options)] == [5.0]
    assert ("brokers expose no bytes" in capsys.readouterr().err) == (source == "jmx")
