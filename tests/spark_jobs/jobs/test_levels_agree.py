"""One minute, one level: page, JSON API, SQL view, `headroom top`, PromQL over /metrics and the Spark job agree."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from exporters.model import UsageSample
from spark_jobs.jobs import quota_headroom
from spark_jobs.options import HeadroomOptions
from spark_jobs.time_range import TimeRange
from telemetry.ingest.arrow_tables import usage_table
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.debian import prometheus_program
from tests.kit.prometheus import Prometheus
from tests.kit.serving import Served
from tests.kit.surface_levels import JOB, by_client, differing, live_levels

pytestmark = [pytest.mark.release, pytest.mark.clickhouse, pytest.mark.spark, pytest.mark.promtool]

CLUSTER = "levels"
LIMIT = 1e6
MINUTES = 8  # around now: whichever is shown has the same rows
LOOK_S = 270.0  # rows go on for longer
INTERFACES = ("page", "API", "view", "top", "PromQL", JOB)


class Scripted(NamedTuple):
    """A client in each minute: its share of LIMIT, and for how long it is muted."""

    level: str
    share: float
    muted_ms: int = 0
    peaks: int = 0  # seconds of the minute at twice the share
    limit: float | None = LIMIT
    limit_known: bool = True
    quota_key: str = "producer_byte_rate"
    shared: str = ""  # clients that name the same bucket are added up
    brokers: tuple[float, ...] = (1.0,)  # part of the share at each broker
    gateways: int = 1
    seconds: int = 60  # active at the beginning of the minute


CLIENTS = {
    "idle": Scripted("ok", 0.01, seconds=3),
    "below-watch": Scripted("ok", 0.599_999),
    "at-watch": Scripted("watch", 0.60),
    "below-warn": Scripted("watch", 0.799_999),
    "at-warn": Scripted("warn", 0.80),
    "below-critical": Scripted("warn", 0.949_999),
    "at-critical": Scripted("critical", 0.95),
    "above-limit": Scripted("critical", 1.3),
    "muted-599": Scripted("critical", 0.3, muted_ms=599),
    "muted-600": Scripted("throttled", 0.3, muted_ms=600),
    "muted-long": Scripted("throttled", 1.0, muted_ms=48_000),
    "no-quota": Scripted("ok", 5.0, limit=None),
    "unlimited": Scripted("ok", 5.0, limit=float(2**63 - 1)),
    "unknown": Scripted("unknown", 0.9, limit=None, limit_known=False),
    "muted-unknown": Scripted("critical", 0.9, muted_ms=100, limit=None, limit_known=False),
    "no-bytes-allowed": Scripted("critical", 1e-6, limit=0.0),
    "short-peaks": Scripted("ok", 0.45, peaks=2),  # the p95 of 60 seconds leaves two out
    "long-peaks": Scripted("warn", 0.45, peaks=3),
    "shares-a": Scripted("warn", 0.7, shared="team"),
    "shares-b": Scripted("warn", 0.15, shared="team"),
    "two-gateways": Scripted("critical", 0.96, gateways=2),
    "worst-broker": Scripted("watch", 0.65, brokers=(0.5, 1.0)),
    "spread": Scripted("ok", 1.1, brokers=(0.5, 0.5)),
    "half-a-minute": Scripted("ok", 0.59, seconds=30),
    "requests": Scripted("warn", 0.9, limit=200.0, quota_key="request_percentage"),
    "consumer": Scripted("critical", 0.99, quota_key="consumer_byte_rate"),
}


def usage_of(name: str, client: Scripted, at_s: int) -> list[UsageSample]:
    """The rows of one second."""
    second = at_s % 60
    if second >= client.seconds and not client.muted_ms:
        return []
    share = client.share * (2 if second < client.peaks else 1)
    limit = client.limit if client.limit and client.limit < 1e15 else LIMIT
    muted_ms = min(max(client.muted_ms - 1000 * second, 0), 1000)
    return [
        UsageSample(
            CLUSTER, client.quota_key, at_s * 1000, "alice", name, "", broker_id, int(limit), rate, float(muted_ms), 0,
            "gateway", f"gw-{gateway}", 1000, client.limit, client.limit_known, "client-id=x" if client.limit else "",
            "", client.shared or name, muted_ms=muted_ms,
        )
        for broker_id, part in enumerate(client.brokers)
        for gateway in range(client.gateways)
        for rate in [share * part * limit / client.gateways]
    ]  # fmt: skip


def test_all_interfaces_report_equal_levels(
    clickhouse: RunningClickHouse, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = int(time.time())
    rows = [
        row
        for name, client in CLIENTS.items()
        for at_s in range(now_s - 60 * MINUTES, now_s + 60 * MINUTES)
        for row in usage_of(name, client, at_s)
    ]
    clickhouse.store.insert("quota_usage", usage_table(rows, now_s * 1000), token="levels-agree")
    monkeypatch.setenv("HEADROOM_CLICKHOUSE_PASSWORD", clickhouse.writer.password)
    monkeypatch.setenv("HEADROOM_QUOTAS__METRICS__ENABLED", "true")
    monkeypatch.setenv("HEADROOM_LEVELS__EVERY_MS", "3600000")  # whole minutes only, as the job's
    program = prometheus_program(Path(__file__).parents[3])
    sql = f"{clickhouse.host}:{clickhouse.port}"
    with (
        Served(tmp_path, "--clickhouse", clickhouse.writer.url) as served,
        Prometheus(program, served.http, tmp_path) as prometheus,
    ):
        deadline_s = time.monotonic() + LOOK_S
        while True:  # a minute that ends during the comparison is no longer shown: retry with the next one
            minute_ms = int(time.time() - 64) // 60 * 60_000
            shown = live_levels(sql, served.http, prometheus, CLUSTER, minute_ms, until_s=minute_ms / 1000 + 124)
            if (all(shown.values()) and not differing(shown)) or time.monotonic() > deadline_s:
                break
    options = HeadroomOptions(clickhouse.url, TimeRange(minute_ms, minute_ms + 60_000, 60), cluster=CLUSTER)
    shown[JOB] = by_client(quota_headroom.run(options))
    expected = {(client.quota_key, name): client.level for name, client in CLIENTS.items()}
    assert {name: levels for name, levels in shown.items() if levels != expected} == {}
    assert tuple(shown) == INTERFACES
    assert differing(shown) == []
