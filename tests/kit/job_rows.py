"""Three minutes of quota usage, and what quota-headroom publishes of them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tests.kit.clickhouse import RunningClickHouse
from tests.kit.recent import FRIDAY_MS

START = FRIDAY_MS
CLUSTER = "two-workers"


def fill(clickhouse: RunningClickHouse) -> None:
    """Twenty clients of three users at two brokers for three minutes; Spark has to resolve the limits of half of
    them."""
    at = [(second, client) for second in range(180) for client in range(20)]
    known = [client % 2 for _, client in at]
    rows: dict[str, Any] = {
        "cluster": [CLUSTER] * len(at),
        "quota_key": ["producer_byte_rate"] * len(at),
        "ts": pa.array([START + second * 1000 for second, _ in at], pa.timestamp("ms", "UTC")),
        "user": [f"u{client % 3}" for _, client in at],
        "client_id": [f"c{client}" for _, client in at],
        "ip": [""] * len(at),
        "broker_id": pa.array([client % 2 for _, client in at], pa.int32()),
        "bytes": pa.array([0] * len(at), pa.uint64()),
        "rate": [float(10 * client + second % 7) for second, client in at],
        "throttle_ms": [float(700 * (client == 19)) for _, client in at],
        "throttled_requests": pa.array([0] * len(at), pa.uint64()),
        "source": ["gateway"] * len(at),
        "interval_ms": pa.array([1000] * len(at), pa.uint32()),
        "muted_ms": pa.array([700 * (client == 19) for _, client in at], pa.uint32()),
        "limit": pa.array([500.0 if one else None for one in known], pa.float64()),
        "limit_known": pa.array(known, pa.uint8()),
        "bucket_client_id": [""] * len(at),
    }
    clickhouse.store.insert("quota_usage", pa.table(rows), token=CLUSTER)
    limit: dict[str, Any] = {
        "cluster": [CLUSTER],
        "user": ["<default>"],
        "client_id": [""],
        "ip": [""],
        "quota_key": ["producer_byte_rate"],
        "value": [500.0],
        "valid_from": pa.array([START - 60_000], pa.timestamp("ms", "UTC")),
    }
    clickhouse.store.insert("quota_limits", pa.table(limit), token=f"{CLUSTER}-limit")


def committed(clickhouse: RunningClickHouse) -> list[Any]:
    return list(
        clickhouse.store.query(
            "SELECT * EXCEPT (run_id, run_version) FROM headroom.quota_utilization_committed"
            f" WHERE cluster = '{CLUSTER}' ORDER BY window_start, user, client_id"
        )
    )
