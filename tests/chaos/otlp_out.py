"""`python -m tests.chaos.otlp_out SEED AWAY_S [grpc|http]`: an OpenTelemetry Collector stops for AWAY_S under load.

Meanwhile clients are acknowledged and ClickHouse is written as before. Afterwards the collector must have every
acknowledged data point that ClickHouse has; a request that it accepted without our seeing the response comes twice.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import yaml

from tests.chaos.load import Load, metrics_data
from tests.chaos.scenario import RETRY
from tests.chaos.wire import WireClient
from tests.kit.collector import Collector
from tests.kit.serving import Served, rows

DIRECTORY = Path("build/otlp-out")
CLIENTS = 30
INTERVAL_MS = 500
BEFORE_S = 20.0
CATCH_UP_S = 300.0
_SAMPLE_S = 1.0
_PROBE = -1.0  # value of the points of the probe
_METRICS = ("headroom_records:buffered", "headroom_spool_oldest_record_age_seconds", "headroom_forward_lag_bytes")


class Phase:
    """How the service performed for other clients in one part of the run."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.latencies_ms: list[float] = []
        self.most = dict.fromkeys(_METRICS, 0.0)

    def line(self) -> str:
        p50, p99 = (statistics.quantiles(self.latencies_ms, n=100)[at] for at in (49, 98))
        buffered, age_s, lag = (self.most[name] for name in _METRICS)
        return (
            f"{self.name}: {len(self.latencies_ms)} pushes of a probe, p50 {p50:.1f} ms, p99 {p99:.1f} ms; at most"
            f" {buffered:.0f} records not yet in ClickHouse, the oldest {age_s:.1f} s; forwarding up to"
            f" {lag / (1 << 20):.1f} MiB behind"
        )


def main(seed: int, away_s: float, protocol: str) -> int:
    """Prints a line for each phase and a summary; returns 0 when nothing is missing."""
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    DIRECTORY.mkdir(parents=True)
    collector = Collector(DIRECTORY / "collector")
    with collector, Served(DIRECTORY, "--config", str(_configuration(collector, protocol))) as served:
        return asyncio.run(_run(served, collector, random.Random(seed), away_s))


def _configuration(collector: Collector, protocol: str) -> Path:
    subscriptions, file = DIRECTORY / "subscriptions.yaml", DIRECTORY / "headroom.yaml"
    subscriptions.write_text(yaml.safe_dump({"all": {"metrics": "*", "interval.ms": str(INTERVAL_MS)}}))
    address = collector.http if protocol == "http" else collector.grpc
    forward = {"endpoint": f"http://{address}", "protocol": protocol}
    file.write_text(yaml.safe_dump({"subscriptions": str(subscriptions), "forward": forward}))
    return file


async def _run(served: Served, collector: Collector, rng: random.Random, away_s: float) -> int:
    load = Load(CLIENTS, lambda: served.address, rng)
    load.start()
    async with _observed(served, "before") as before:
        await asyncio.sleep(BEFORE_S)
    await asyncio.to_thread(collector.stop)
    async with _observed(served, "collector stopped") as away:
        await asyncio.sleep(away_s)
    await asyncio.to_thread(collector.start)
    async with _observed(served, "catching up") as after:
        began = time.monotonic()
        await _caught_up(served, before.most["headroom_forward_lag_bytes"])
        caught_up_s = time.monotonic() - began
        await asyncio.sleep(max(0.0, BEFORE_S - caught_up_s))
    await load.stop()
    await _caught_up(served, 0)
    stored = {value for (value,) in await asyncio.to_thread(rows, served.sql, "SELECT value FROM points")}
    metrics = await asyncio.to_thread(served.metrics)
    await asyncio.to_thread(collector.stop)
    forwarded = await asyncio.to_thread(collector.values)
    for phase in (before, away, after):
        print(phase.line())
    acknowledged, ledger = load.ledger.acknowledged, load.ledger
    not_stored, missing = len(acknowledged - stored), len(acknowledged - forwarded.keys())
    doubled = sum(count - 1 for value, count in forwarded.items() if value != _PROBE)
    lost = sum(count for name, count in metrics.items() if name.startswith("headroom_forward_lost"))
    print(
        f"away_s={away_s:.0f} acknowledged={len(acknowledged)} not_stored={not_stored} not_forwarded={missing}"
        f" forwarded_twice={doubled} dropped_by_forwarding={lost:.0f} refused_pushes={ledger.answers[RETRY]}"
        f" caught_up_after_s={caught_up_s:.1f}"
    )
    return 1 if not_stored or missing or lost or ledger.answers[RETRY] else 0


async def _caught_up(served: Served, lag_bytes: float) -> None:
    """Returns when ClickHouse has what was acknowledged before the call, and forwarding is `lag_bytes` behind at most.

    Under load it is never at 0 for long.
    """
    received = (await asyncio.to_thread(served.metrics))["headroom_records_received_total"]

    def is_so() -> bool:
        found = served.metrics()
        settled = found["headroom_records:written"] + found["headroom_records:dropped"]
        behind = found["headroom_forward_lag_bytes"] > lag_bytes
        return settled >= received and not behind and found["headroom_forward_up"] == 1

    deadline = time.monotonic() + CATCH_UP_S
    while not await asyncio.to_thread(is_so):
        if time.monotonic() > deadline:
            raise TimeoutError(f"forwarding is still behind after {CATCH_UP_S:.0f} s")
        await asyncio.sleep(0.2)


@asynccontextmanager
async def _observed(served: Served, name: str) -> AsyncIterator[Phase]:
    """Has a probe push and reads the metrics while the block runs."""
    phase = Phase(name)
    tasks = [asyncio.create_task(_probe(served, phase)), asyncio.create_task(_sample(served, phase))]
    try:
        yield phase
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for error in results:
        if not isinstance(error, asyncio.CancelledError):
            raise RuntimeError("an observer of the run ended") from (error if isinstance(error, Exception) else None)


async def _probe(served: Served, phase: Phase) -> None:
    client = await WireClient.connect(*served.address, "probe")
    try:
        subscription = await client.subscription(bytes(16))
        while True:
            payload = metrics_data([int(_PROBE)], time.time_ns(), b"")
            began = time.monotonic()
            if await client.push(subscription, 0, payload) == 0:
                phase.latencies_ms.append((time.monotonic() - began) * 1000)
            await asyncio.sleep(INTERVAL_MS / 1000 * 1.05)
    finally:
        client.close()


async def _sample(served: Served, phase: Phase) -> None:
    while True:
        found = await asyncio.to_thread(served.metrics)
        phase.most = {name: max(most, found[name]) for name, most in phase.most.items()}
        await asyncio.sleep(_SAMPLE_S)


if __name__ == "__main__":
    chosen = sys.argv[3] if len(sys.argv) > 3 else "grpc"
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), chosen))
