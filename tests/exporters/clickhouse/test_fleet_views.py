"""Views about quotas' history, about client instances and their versions, and about what gateways and JMX metered."""

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


ASSERTION, NULL, NOTHING, ROLLUPS = "assertion", "pushes null", "do not work", "no terminating push"

# software -> library, library version, known issues
SOFTWARE: dict[tuple[str, str], tuple[str, str, list[str]]] = {
    ("librdkafka", "2.4.9"): ("librdkafka", "2.4.9", []),
    ("librdkafka", "2.5.0"): ("librdkafka", "2.5.0", [ASSERTION]),
    ("librdkafka", "2.5.2"): ("librdkafka", "2.5.2", [ASSERTION]),
    ("librdkafka", "2.5.3"): ("librdkafka", "2.5.3", [NULL]),
    ("librdkafka", "v2.10.0-RC1"): ("librdkafka", "2.10.0", [NULL]),  # 10 is more than 5
    ("librdkafka", "2.10.1"): ("librdkafka", "2.10.1", []),
    ("confluent-kafka-python", "2.16.1-rdkafka-2.5.1"): ("librdkafka", "2.5.1", [ASSERTION]),
    ("confluent-kafka-python", "2.5.1-rdkafka-2.16.0"): ("librdkafka", "2.16.0", []),
    ("karafka", "v2.5.0-rdkafka-ruby-v0.22.2-librdkafka-v2.8.0"): ("librdkafka", "2.8.0", [NULL]),
    ("confluent-kafka-go", "2.5.0"): ("librdkafka", "2.5.0", [ASSERTION]),
    ("confluent-kafka-dotnet", "2.6.1"): ("librdkafka", "2.6.1", [NULL]),
    ("kgo", "v1.20.3"): ("franz-go", "1.20.3", [ROLLUPS]),
    ("kgo", "v1.20.4"): ("franz-go", "1.20.4", [NOTHING, ROLLUPS]),
    ("kgo", "v1.20.5"): ("franz-go", "1.20.5", [ROLLUPS]),
    ("kgo", "v1.21.4"): ("franz-go", "1.21.4", []),
    ("kgo", "unknown"): ("franz-go", "", []),
    ("apache-kafka-java", "2.5.0"): ("apache-kafka-java", "2.5.0", []),
    ("librdkafka", "99999999999999999999.1"): ("librdkafka", "99999999999999999999.1", []),
    ("x'; DROP", "2.5.0'"): ("x'; DROP", "2.5.0", []),
}


def test_versions_are_compared_numerically(clickhouse: RunningClickHouse) -> None:
    for name, version in SOFTWARE:
        clickhouse.store.query(
            "INSERT INTO headroom.client_instances (cluster, client_instance_id, software_name, software_version,"
            " last_seen) VALUES ('software', generateUUIDv4(), {n:String}, {v:String}, now64(3))",
            {"n": name, "v": version},
        )
    rows = clickhouse.store.query(
        "SELECT software_name, software_version, library, library_version, known_issue"
        " FROM headroom.client_software WHERE cluster = 'software'"
    )
    assert len(rows) == len(SOFTWARE)
    for name, version, library, library_version, known_issue in rows:
        expected_library, expected_version, issues = SOFTWARE[name, version]
        assert (library, library_version) == (expected_library, expected_version)
        reported = known_issue.split("; ") if known_issue else []
        assert len(reported) == len(issues), (name, version, reported)
        assert all(issue in report for issue, report in zip(issues, reported, strict=True)), (name, version, reported)


def test_only_active_instances_are_counted(clickhouse: RunningClickHouse) -> None:
    seen = {"now64(3), 0": 3, "now64(3), 1": 1, "now64(3) - INTERVAL 20 MINUTE, 0": 1}  # last_seen, terminated
    for times, count in seen.items():
        clickhouse.store.query(
            "INSERT INTO headroom.client_instances"
            " (cluster, client_instance_id, software_name, software_version, last_seen, terminated)"
            f" SELECT 'counted', generateUUIDv4(), 'librdkafka', '2.5.0', {times} FROM numbers({count})"
        )
    # Repeated rows of one instance count once.
    columns = "cluster, client_instance_id, software_name, software_version"
    clickhouse.store.query(
        f"INSERT INTO headroom.client_instances ({columns}, last_seen) SELECT {columns}, now64(3)"
        " FROM headroom.client_instances WHERE cluster = 'counted' AND terminated = 0"
        " AND last_seen > now() - INTERVAL 10 MINUTE LIMIT 1"
    )
    counted = "SELECT instances, last_seen > now() - INTERVAL 10 MINUTE FROM headroom.client_software"
    assert clickhouse.store.query(f"{counted} WHERE cluster = 'counted'") == [(3, 1)]
