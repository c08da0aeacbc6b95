"""Rows of usage, and levels of minutes as `headroom serve` computes them."""

import time
from typing import Any

from exporters.clickhouse.store import Store
from exporters.model import UsageSample
from quota_metrics.minutes.live import LiveLevels
from quota_metrics.verdict.thresholds import Thresholds
from telemetry.ingest.arrow_tables import usage_table
from tests.kit.clickhouse import QueriedStore

PRODUCER = "producer_byte_rate"


def compute_levels(store: QueriedStore, *starts_s: int, thresholds: Thresholds = Thresholds()) -> None:
    """Computes the minutes that begin at these seconds since the epoch, in order."""
    levels = LiveLevels(store.clickhouse, now_ms)
    for start_s in starts_s:
        levels.compute_minute(start_s, thresholds)


def write(store: Store, samples: list[UsageSample], token: str) -> None:
    store.insert("quota_usage", usage_table(samples, now_ms()), token=token)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def sample(cluster: str, ts_ms: int, rate: float, **more: Any) -> UsageSample:
    base = UsageSample(cluster, PRODUCER, ts_ms, "alice", "app", "", 1, 0, rate, 0.0, 0, "gateway")
    known: dict[str, Any] = {"gateway_id": "gw", "interval_ms": 1000, "limit": 1000.0, "limit_known": True}
    return base._replace(**{**known, "matched_entity": "user=alice", **more})
