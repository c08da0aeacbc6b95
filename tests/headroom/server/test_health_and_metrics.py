"""Health, which says what is late or lost, and /metrics as Prometheus and `promtool check metrics` read it."""

import asyncio
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import httpx
import pytest
from prometheus_client import Metric, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text
from prometheus_client.registry import Collector

from exporters import self_metrics as catalogue
from exporters.model import RecordKind
from exporters.self_metrics import CATALOGUE, SelfMetric, Values
from exporters.spool.writer import SpoolWriter
from headroom.server.health import Health
from headroom.server.http import web_app
from headroom.server.metrics import Snapshot, receiver_readings
from telemetry.receiver.telemetry_requests import ReceiverCounts, TelemetryReceiver
from telemetry.subscriptions.kip714_rules import ClientMetrics
from telemetry.wire.errors import ErrorCode
from tests.kit.debian import promtool
from tests.kit.grpc_servers import in_loop

MIB = 1 << 20


def test_late_data_is_degraded_whatever_the_worker_says(tmp_path: Path) -> None:
    health = Health(tmp_path, 30_000, lambda: None, dict)
    asyncio.run(health.sample())
    assert health.report().lines() == [
        "ready",
        "oldest record of pushes that is not stored: 0.0 s",
        "oldest record of usage that is not stored: 0.0 s",
    ]
    spool = SpoolWriter(tmp_path, "pushes", segment_bytes=MIB, max_bytes=64 * MIB)
    now_s = time.time()
    spool.append(RecordKind.PUSH, int(now_s * 1000 - 75_000).to_bytes(8, "big") + bytes(20))
    spool.flush()
    asyncio.run(health.sample())
    found = health.report(now_s)
    assert (found.reason, found.degraded) == ("", ["pushes: the oldest record waits for 75 s"])
    assert found.lines()[:2] == ["ready", "degraded: pushes: the oldest record waits for 75 s"]
    [(metric, ages)] = health.readings().items()
    assert metric is catalogue.SPOOL_OLDEST
    assert isinstance(ages, dict) and ages["pushes"] >= 75 and ages["usage"] == 0
    spool.close()


def test_spool_that_cannot_be_examined_is_degraded(tmp_path: Path) -> None:
    health = Health(tmp_path / "missing", 30_000, lambda: "draining", dict)
    asyncio.run(health.sample())
    found = health.report()
    assert found.reason == "draining"
    assert found.degraded[0].startswith("the spool cannot be examined: ")


def test_losses_are_degraded_for_ten_minutes(tmp_path: Path) -> None:
    dropped, lost = Counter({"refused": 5}), [0.0]

    def readings() -> dict[SelfMetric, Values]:
        return {
            catalogue.DROPPED: dict(dropped),
            catalogue.USAGE_ROWS_LOST: lost[0],
            catalogue.JMX_FAILURES: 8 * lost[0],
        }

    health = Health(tmp_path, 30_000, lambda: None, readings)
    health.count(0.0)
    assert health.report().degraded == []  # of an earlier run
    dropped["decode"] += 2
    lost[0] += 7
    health.count(1.0)
    assert health.report().degraded == [
        "2 records were dropped (headroom_dropped_total) in the last 10 minutes",
        "7 rows of usage were lost (headroom_usage_rows_lost_total) in the last 10 minutes",
        "56 scrapes of brokers' JMX failed (headroom_jmx_scrape_failures_total) in the last 10 minutes",
    ]
    for second in range(2, 603):
        health.count(float(second))
    assert health.report().degraded == []


def test_trends_come_from_the_counts(tmp_path: Path) -> None:
    written = [0.0]

    def readings() -> dict[SelfMetric, Values]:
        return {
            catalogue.CONNECTIONS: 12,
            catalogue.PUSHES: {"NONE": 6 * written[0], "THROTTLING_QUOTA_EXCEEDED": written[0]},
            catalogue.SPOOL_BYTES: 900,
            catalogue.RECORDS: {"written": written[0], "buffered": 5.0},
        }

    health = Health(tmp_path, 30_000, lambda: None, readings)
    for second in range(11):
        written[0] = 2.0 * second
        health.count(float(second))
    assert health.trends.values() == {
        "brokers and gateway": [12.0], "pushes": [14.0], "ingest lag": [0.0], "spool": [900.0], "store": [2.0],
    }  # fmt: skip


def everything() -> dict[SelfMetric, Values]:
    """A value of each metric of the catalogue."""
    return {metric: {('a "b"\n\\',) * len(metric.labels): 1.5} if metric.labels else 2.0 for metric in CATALOGUE}


@pytest.mark.parametrize("write, read", [(generate_latest, read_text), (generate_openmetrics, read_openmetrics)])
def test_every_metric_is_parsed_in_both_formats(
    write: Callable[[Collector], bytes], read: Callable[[str], Iterable[Metric]]
) -> None:
    """In OpenMetrics a counter's family is named without _total: no gauge may have the same name."""
    families = list(read(write(Snapshot(everything)).decode()))
    samples = {sample.name: (family, sample) for family in families for sample in family.samples}
    assert len(families) == len(samples) == len(CATALOGUE)
    for metric in CATALOGUE:
        family, sample = samples[metric.name]
        assert family.documentation == metric.help
        assert family.type == ("counter" if metric.name.endswith("_total") else "gauge")
        assert sample.labels == dict.fromkeys(metric.labels, 'a "b"\n\\')
        assert sample.value == (1.5 if metric.labels else 2.0)


@pytest.mark.promtool
def test_promtool_has_no_complaint() -> None:
    """About names, units, labels and helps."""
    lint = [promtool(Path(__file__).parents[3]), "check", "metrics"]
    linted = subprocess.run(lint, input=generate_latest(Snapshot(everything)), capture_output=True, check=False)
    assert (linted.returncode, linted.stdout + linted.stderr) == (0, b"")
    assert all(metric.help.endswith(".") for metric in CATALOGUE)


def test_receiver_readings_are_derived_from_its_counts() -> None:
    receiver = TelemetryReceiver(ClientMetrics(new_id=lambda: b""), append=lambda *_: None, telemetry_max_bytes=1)
    early, unknown = ErrorCode.THROTTLING_QUOTA_EXCEEDED, ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    receiver.counts = ReceiverCounts(
        gets=Counter({ErrorCode.NONE: 9, early: 2}),
        refused_pushes=Counter({early: 3, unknown: 4, ErrorCode.INVALID_RECORD: 2}),
        accepted_pushes=7,
        empty_pushes=2,
        faults=1,
    )
    readings = receiver_readings(receiver)  # by the names of KIP-714
    named = {metric.name.removeprefix("kafka_server_client_metrics_"): values for metric, values in readings.items()}
    assert named["instances"] == 0
    assert named["unknown_subscription_requests_total"] == 4
    assert named["throttles_total"] == 5
    assert named["plugin_exports_total"] == 5
    assert named["plugin_errors_total"] == 3
    assert readings[catalogue.PUSHES] == {"NONE": 7, early.name: 3, unknown.name: 4, "INVALID_RECORD": 2}


def test_snapshot_does_not_change_afterwards() -> None:
    live: dict[str, float] = {"NONE": 1.0}
    snapshot = Snapshot(lambda: {catalogue.PUSHES: live})
    live["INVALID_REQUEST"] = 2.0
    assert [sample.value for family in snapshot.collect() for sample in family.samples] == [1.0]


@in_loop
async def test_readings_are_taken_in_the_event_loop_thread() -> None:
    threads = set()

    def reading() -> dict[SelfMetric, Values]:
        threads.add(threading.get_ident())
        return {catalogue.CONNECTIONS: 3}

    transport = httpx.ASGITransport(web_app(partial(Snapshot, reading), Health(Path(), 1, lambda: None, dict)))
    async with httpx.AsyncClient(transport=transport, base_url="http://headroom") as client:
        assert "headroom_connections 3.0" in (await client.get("/metrics")).text
    assert threads == {threading.get_ident()}
