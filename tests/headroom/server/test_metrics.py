"""/metrics as Prometheus parses it, and what `promtool check metrics` says of it."""

from __future__ import annotations

import asyncio
import subprocess
import threading
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
from exporters.self_metrics import CATALOGUE, SelfMetric, Values
from headroom.server.health import Health
from headroom.server.http import web_app
from headroom.server.metrics import Snapshot, receiver_readings
from telemetry.receiver.telemetry_requests import ReceiverCounts, TelemetryReceiver
from telemetry.subscriptions.kip714_rules import ClientMetrics
from telemetry.wire.errors import ErrorCode
from tests.kit.debian import promtool


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


def test_readings_are_taken_in_the_event_loop_thread() -> None:
    threads = set()

    def reading() -> dict[SelfMetric, Values]:
        threads.add(threading.get_ident())
        return {catalogue.CONNECTIONS: 3}

    async def scrape() -> str:
        transport = httpx.ASGITransport(web_app(partial(Snapshot, reading), Health(Path(), 1, lambda: None, dict)))
        async with httpx.AsyncClient(transport=transport, base_url="http://headroom") as client:
            return (await client.get("/metrics")).text

    assert "headroom_connections 3.0" in asyncio.run(scrape())
    assert threads == {threading.get_ident()}
