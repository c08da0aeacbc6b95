"""Small pushes that would take disproportionate work to decode are quarantined; all others are stored."""

import asyncio
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest
import zstandard
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from telemetry.ingest.quarantine import Held, held
from tests.attack.victim import MB, attack
from tests.chaos.load import metrics_data
from tests.chaos.wire import WireClient
from tests.kit.otlp_payloads import array, field, in_metric, many_series
from tests.kit.serving import Served, config_file, eventually, is_at_rest

pytestmark = [pytest.mark.release, pytest.mark.clickhouse]

ZSTD = 4
REASON = "headroom_dropped_total:over_budget"
MAX_CLIENT_POINTS, MAX_CLIENT_SERIES = 50, 10  # settings, far below the defaults
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
        with closing(await WireClient.connect(*address, name)) as client:
            codes.append(await client.push(await client.subscription(bytes(16)), ZSTD, payload))
    return codes


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> object:
    budgets = {"max_client_points": MAX_CLIENT_POINTS, "max_client_series": MAX_CLIENT_SERIES}
    directory = tmp_path_factory.mktemp("payloads")
    with Served(directory, *config_file(directory, push_ms=100, telemetry=budgets)) as running:
        yield running


def points_of_one_series(count: int) -> bytes:
    data = MetricsData.FromString(metrics_data([0], 1, b""))
    [metric] = data.resource_metrics[0].scope_metrics[0].metrics
    for n in range(1, count):
        metric.gauge.data_points.add(time_unix_nano=1 + n, as_double=n)
    return data.SerializeToString()


def quarantined(served: Served) -> list[Held]:
    return [*held(Path(served.argv[served.argv.index("--data") + 1]) / "quarantine")]


def test_client_budgets_are_configurable(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    now_ns, before = time.time_ns(), served.metrics()
    pushes = {
        "points of one client in a minute": points_of_one_series(MAX_CLIENT_POINTS + 1),
        "new series of one client in a minute": metrics_data([*range(MAX_CLIENT_SERIES + 1)], now_ns, b""),
    }
    within = [points_of_one_series(MAX_CLIENT_POINTS), metrics_data([*range(MAX_CLIENT_SERIES)], now_ns, b"")]
    with attack(served, "one point and one new series more than a client may send in a minute", capsys) as report:
        payloads = [zstandard.compress(payload) for payload in (*pushes.values(), *within)]
        codes = asyncio.run(push_all(served.address, payloads, "greedy"))
        assert codes == [0, 0, 0, 0]
        eventually(served.metrics, lambda found: found[REASON] == before[REASON] + len(pushes))
        report.shown = "quarantined; as much as is allowed is stored"
    after = eventually(served.metrics, is_at_rest)
    assert after[REASON] - before[REASON] == len(pushes)
    causes = [one.facts["cause"] for one in quarantined(served) if one.facts["client_id"] == "greedy"]
    assert sorted(causes) == sorted(
        f"cannot keep the push: more than {limit} {budget}"
        for budget, limit in zip(pushes, (MAX_CLIENT_POINTS, MAX_CLIENT_SERIES), strict=True)
    )


@pytest.mark.parametrize("tried", ATTACKS)
def test_over_budget_pushes_are_quarantined_and_others_are_stored(
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
    assert {one.facts["reason"] for one in quarantined(served)} == {"over_budget"}
    assert served.ready() == (200, "ready\n")
