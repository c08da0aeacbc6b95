"""The view gateway_share: what the brokers' JMX metered beside what two gateways metered."""

from __future__ import annotations

import time
from typing import Any

import pytest

from exporters.model import UsageSample
from telemetry.ingest.arrow_tables import usage_table
from tests.kit.clickhouse import QueriedStore, RunningClickHouse

pytestmark = pytest.mark.clickhouse

PRODUCER = "producer_byte_rate"


def row(source: str, ts_ms: int, client_id: str, rate: float, **more: Any) -> UsageSample:
    return UsageSample("share", PRODUCER, ts_ms, "alice", client_id, "", 1, 0, rate, 0.0, 0, source)._replace(**more)


def shares(store: QueriedStore) -> dict[tuple[str, str], tuple[float, float, float, int]]:
    rows = store.query(
        "SELECT user, client_id, round(share, 4), gateway_rate, broker_rate, samples FROM headroom.gateway_share"
        " WHERE cluster = 'share'"
    )
    return {(line[0], line[1]): (line[2], line[3], line[4], line[5]) for line in rows}


def test_shares_sum_over_gateways_and_show_bypassing_traffic(clickhouse: RunningClickHouse) -> None:
    """JMX is sampled every 5 s with an offset of 300 ms; one gateway records every 2 s."""
    end_ms = time.time_ns() // 1_000_000_000 * 1000 - 10_000
    rows = []
    for ago in range(60):
        ts_ms = end_ms - 1000 * ago
        rate = 1000.0 + ago  # changes from second to second: only equal seconds may be compared
        if ago % 5 == 0:
            rows += [row("jmx", ts_ms + 300, name, rate) for name in ("both", "half", "none")]
            rows.append(row("jmx", ts_ms + 300, "", 2 * rate))  # the bucket of all client ids of the user
        for gateway_id, part in (("a", 0.6), ("b", 0.4)):
            of = {"gateway_id": gateway_id, "interval_ms": 1000}
            rows.append(row("gateway", ts_ms, "both", part * rate, **of))
            shared = {"bucket_user": "alice", "bucket_client_id": ""}
            rows += [row("gateway", ts_ms, name, part * rate, **of, **shared) for name in ("app-1", "app-2")]
        if ago % 2 == 0:
            rows.append(row("gateway", ts_ms, "half", 0.5 * rate, gateway_id="a", interval_ms=2000))
    clickhouse.store.insert("quota_usage", usage_table(rows, end_ms), token="share")
    by_client = shares(clickhouse.store)
    assert {name: values[3] for name, values in by_client.items()} == dict.fromkeys(by_client, 12)
    assert by_client["alice", "both"][0] == 1.0
    assert by_client["alice", ""][0] == 1.0
    assert by_client["alice", "none"][:2] == (0.0, 0.0)
    assert by_client["alice", "half"][0] == pytest.approx(0.5, abs=0.002)
