"""headroom/server/health.py: late and lost data is degraded, and says so."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

from exporters import self_metrics as catalogue
from exporters.model import RecordKind
from exporters.self_metrics import SelfMetric, Values
from exporters.spool.writer import SpoolWriter
from headroom.server.health import Health

MIB = 1 << 20


def test_late_data_is_degraded_whatever_the_worker_says(tmp_path: Path) -> None:
    health = Health(tmp_path, 30_000, lambda: None, dict)
    asyncio.run(health.sample())
    assert health.verbose().lines() == [
        "ready",
        "oldest record of pushes that is not stored: 0.0 s",
        "oldest record of usage that is not stored: 0.0 s",
    ]
    spool = SpoolWriter(tmp_path, "pushes", segment_bytes=MIB, max_bytes=64 * MIB)
    now_s = time.time()
    spool.append(RecordKind.PUSH, int(now_s * 1000 - 75_000).to_bytes(8, "big") + bytes(20))
    spool.flush()
    asyncio.run(health.sample())
    found = health.verbose(now_s)
    assert (found.reason, found.degraded) == ("", ["pushes: the oldest record waits for 75 s"])
    assert found.lines()[:2] == ["ready", "degraded: pushes: the oldest record waits for 75 s"]
    [(metric, ages)] = health.readings().items()
    assert metric is catalogue.SPOOL_OLDEST
    assert isinstance(ages, dict) and ages["pushes"] >= 75 and ages["usage"] == 0
    spool.close()


def test_spool_that_cannot_be_examined_is_degraded(tmp_path: Path) -> None:
    health = Health(tmp_path / "missing", 30_000, lambda: "draining", dict)
    asyncio.run(health.sample())
    found = health.verbose()
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
    assert health.verbose().degraded == []  # of an earlier run
    dropped["decode"] += 2
    lost[0] += 7
    health.count(1.0)
    assert health.verbose().degraded == [
        "2 records were dropped (headroom_dropped_total) in the last 10 minutes",
        "7 rows of usage were lost (headroom_usage_rows_lost_total) in the last 10 minutes",
        "56 scrapes of brokers' JMX failed (headroom_jmx_scrape_failures_total) in the last 10 minutes",
    ]
    for second in range(2, 603):
        health.count(float(second))
    assert health.verbose().degraded == []


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
