"""Views about quotas' history, about client instances, and about what gateways and the brokers' JMX metered."""

from __future__ import annotations

import time
from typing import Any

import pytest

from exporters.model import QuotaLimit, UsageSample
from telemetry.ingest.arrow_tables import limits_table, usage_table
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.levels import PRODUCER, now_ms, sample, write

pytestmark = pytest.mark.clickhouse


def test_quota_change_recorded_by_two_gateways_is_listed_once(clickhouse: RunningClickHouse) -> None:
    rows = [(10, 5.0), (11, 5.0), (20, 6.0), (21, 6.0), (30, None), (31, None), (40, 5.0)]
    limits = [QuotaLimit("twice", "alice", "<default>", "", PRODUCER, ms, value) for ms, value in rows]
    clickhouse.store.insert("quota_limits", limits_table(limits, now_ms()), token="twice")
    changes = clickhouse.store.query(
        "SELECT entity, toUnixTimestamp64Milli(changed_at), before, after FROM headroom.quota_changes"
        " WHERE cluster = 'twice' ORDER BY changed_at"
    )
    assert changes == [
        ("user=alice, client-id=<default>", ms, before, after)
        for ms, before, after in ((10, None, 5.0), (20, 5.0, 6.0), (30, 6.0, None), (40, None, 5.0))
    ]


def test_silent_clients_and_bad_versions_are_listed(clickhouse: RunningClickHouse) -> None:
    store = clickhouse.store
    for client_id, ago_s, pushes, terminated in (
        ("silent", 400, 37, 0),  # each 100 s
        ("pushes", 90, 40, 0),
        ("ended", 400, 37, 1),
        ("once", 400, 1, 0),
        ("muted", 400, 37, 0),
    ):
        store.query(
            "INSERT INTO headroom.client_instances (cluster, client_id, principal, software_name, software_version,"
            " first_seen, last_seen, terminated, pushes) SELECT 'silent', {client_id:String}, 'alice', 'librdkafka',"
            f" '2.5.0', now64(3) - INTERVAL 4000 SECOND, now64(3) - INTERVAL {ago_s} SECOND, {terminated}, {pushes}",
            {"client_id": client_id},
        )
    second = now_ms() // 1000 * 1000
    write(store, [sample("silent", second, 0.0, client_id="muted", throttle_ms=60_000.0)], "muted")
    silent = store.query(
        "SELECT client_id, round(usual_s), silent_s > 390 FROM headroom.silent_clients WHERE cluster = 'silent'"
    )
    assert silent == [("silent", 100.0, 1)]
    bad = store.query("SELECT software_version, instances FROM headroom.bad_client_versions WHERE cluster = 'silent'")
    assert bad == [("2.5.0", 4)]  # instances seen within 15 minutes and not terminated: silent, pushes, once, muted


def share_row(source: str, ts_ms: int, client_id: str, rate: float, **more: Any) -> UsageSample:
    return UsageSample("share", PRODUCER, ts_ms, "alice", client_id, "", 1, 0, rate, 0.0, 0, source)._replace(**more)


def test_shares_sum_over_gateways_and_show_bypassing_traffic(clickhouse: RunningClickHouse) -> None:
    """JMX is sampled every 5 s with an offset of 300 ms; one gateway records every 2 s."""
    end_ms = time.time_ns() // 1_000_000_000 * 1000 - 10_000
    rows = []
    for ago in range(60):
        ts_ms = end_ms - 1000 * ago
        rate = 1000.0 + ago  # changes from second to second: only equal seconds may be compared
        if ago % 5 == 0:
            rows += [share_row("jmx", ts_ms + 300, name, rate) for name in ("both", "half", "none")]
            rows.append(share_row("jmx", ts_ms + 300, "", 2 * rate))  # the bucket of all client ids of the user
        for gateway_id, part in (("a", 0.6), ("b", 0.4)):
            of = {"gateway_id": gateway_id, "interval_ms": 1000}
            rows.append(share_row("gateway", ts_ms, "both", part * rate, **of))
            shared = {"bucket_user": "alice", "bucket_client_id": ""}
            rows += [share_row("gateway", ts_ms, name, part * rate, **of, **shared) for name in ("app-1", "app-2")]
        if ago % 2 == 0:
            rows.append(share_row("gateway", ts_ms, "half", 0.5 * rate, gateway_id="a", interval_ms=2000))
    clickhouse.store.insert("quota_usage", usage_table(rows, end_ms), token="share")
    shares = clickhouse.store.query(
        "SELECT user, client_id, round(share, 4), gateway_rate, broker_rate, samples FROM headroom.gateway_share"
        " WHERE cluster = 'share'"
    )
    by_client = {(user, client_id): values for user, client_id, *values in shares}
    assert {name: values[3] for name, values in by_client.items()} == dict.fromkeys(by_client, 12)
    assert by_client["alice", "both"][0] == 1.0
    assert by_client["alice", ""][0] == 1.0
    assert by_client["alice", "none"][:2] == [0.0, 0.0]
    assert by_client["alice", "half"][0] == pytest.approx(0.5, abs=0.002)
