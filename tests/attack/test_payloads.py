"""Pushes that decompress to far more work than they are large: they go to quarantine, all others are stored."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import psutil
import pytest
import zstandard

from telemetry.ingest.quarantine_reader import held
from tests.attack.victim import MB, attack, victim
from tests.chaos.load import metrics_data
from tests.chaos.wire import WireClient
from tests.kit.serving import Served, eventually
from tests.telemetry.decode.test_budgets import array, field, in_metric, many_series

pytestmark = pytest.mark.clickhouse

ZSTD = 4
REASON = "headroom_dropped_total:over_budget"
MILLIONS = 7_500_000
BUCKETS = in_metric(10, field(1, field(8, field(2, b"\x01" * MILLIONS))))
ATTACKS = {
    "64 attributes of 1 kB x 50,000 series": [many_series(50_000, 64, 1_000).SerializeToString()],
    "7 arrays of 60,000": [in_metric(5, field(1, array(60_000)) * 7)],
    "a million equal keys": [in_metric(5, field(1, field(7, field(1, b"k")) * 1_000_000))],
    "16 pushes of 7.5 M buckets": [BUCKETS] * 16,
    "7.5 M points": [in_metric(5, field(1, b"") * MILLIONS)],
}


async def push_all(address: tuple[str, int], payloads: list[bytes], name: str) -> list[int]:
    """The code of each push; each from an instance of its own."""
    codes = []
    for payload in payloads:
        client = await WireClient.connect(*address, name)
        try:
            codes.append(await client.push(await client.subscription(bytes(16)), ZSTD, payload))
        finally:
            client.close()
    return codes


def is_at_rest(metrics: dict[str, float]) -> bool:
    """Whether everything that was received is written or dropped."""
    settled = metrics["headroom_records:written"] + metrics["headroom_records:dropped"]
    return not metrics["headroom_records:buffered"] and settled == metrics["headroom_records_received_total"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> object:
    directory = tmp_path_factory.mktemp("payloads")
    (directory / "subscriptions.yaml").write_text("all: {metrics: '*', interval.ms: 100}\n")
    with victim(directory, subscriptions=str(directory / "subscriptions.yaml")) as running:
        yield running


@pytest.mark.parametrize("tried", ATTACKS)
def test_what_costs_too_much_is_quarantined_and_others_are_stored(
    served: Served, tried: str, capsys: pytest.CaptureFixture[str]
) -> None:
    payloads = [zstandard.compress(payload, 3) for payload in ATTACKS[tried]]
    [pid] = [child.pid for child in served.children("headroom.server.processes.storage_process")]
    worker, before = psutil.Process(pid), served.metrics()
    with attack(served, f"{tried} ({max(map(len, payloads)) // 1024} kB compressed)", capsys) as report:
        assert set(asyncio.run(push_all(served.address, payloads, "attacker"))) == {0}
        good = zstandard.compress(metrics_data([41], time.time_ns(), b""))
        assert asyncio.run(push_all(served.address, [good], "bystander")) == [0]
        eventually(served.metrics, lambda found: found[REASON] == before[REASON] + len(payloads))
        rss_mb = worker.memory_info().rss / MB
        report.shown = f"quarantined, the worker holds {rss_mb:.0f} MB"
        assert rss_mb < 1_000
    after = eventually(served.metrics, is_at_rest)
    assert after["headroom_worker_restarts_total"] == 0
    assert after["headroom_records_difference"] == 0
    reasons = {one.facts["reason"] for one in held(Path(served.argv[served.argv.index("--data") + 1]) / "quarantine")}
    assert reasons == {"over_budget"}
    assert served.ready() == (200, "ready\n")
