"""Views about quotas' history, client instances and their versions, what gateways and JMX metered, minutes and now.

tests/spark_jobs/jobs/test_agreement.py draws the rows of minutes; which windows such rows make:
tests/quota_metrics/minutes/test_windows.py.
"""

import time
from typing import Any

import pyarrow as pa
import pytest

from exporters.model import QuotaLimit, UsageSample
from quota_metrics.verdict.client_signals import metrics_of
from telemetry.ingest.arrow_tables import limits_table, usage_table
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.levels import PRODUCER, compute_levels, now_ms, sample, write
from tests.kit.points import TIME, points

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


MINUTE_MS = 60_000


def past_minute(ago: int) -> int:
    return now_ms() // MINUTE_MS * MINUTE_MS - ago * MINUTE_MS


def test_impact_is_what_the_client_reported_in_the_minute(clickhouse: RunningClickHouse) -> None:
    """Of the producer that pushed; who pushed nothing, or in another minute, has an unknown impact."""
    from_ms = past_minute(3)
    names = ("waits", "silent", "earlier")
    rows = [sample("felt", from_ms + 1000 * n, 900.0, client_id=name) for n in range(60) for name in names]
    write(clickhouse.store, rows, "felt")
    metric = pa.array([metrics_of("queue_time_ms")[0]] * 2)
    times = pa.array([from_ms + 30_000, from_ms - 1], TIME)
    users: dict[str, Any] = {"principal": ["alice"] * 2, "client_id": ["waits", "earlier"]}
    clickhouse.store.insert(
        "points", points("felt", 2, metric=metric, ts=times, value=[2500.0] * 2, **users), token="f"
    )
    compute_levels(clickhouse.store, from_ms // 1000)
    judged = clickhouse.store.query(
        "SELECT client_id, toString(level), impact, impact_reason FROM headroom.headroom_by_minute"
        f" WHERE cluster = 'felt' AND window_start = toDateTime({from_ms // 1000}, 'UTC') ORDER BY client_id"
    )
    assert judged == [
        ("earlier", "warn", "unknown", ""),
        ("silent", "warn", "unknown", ""),
        ("waits", "warn", "delayed", "records waited 2.5 s in the producer"),
    ]


def test_every_column_of_every_view_has_a_comment(clickhouse: RunningClickHouse) -> None:
    """Except views that repeat the columns of one table, which docs/tables.md describes."""
    repeating = ("client_software", "known_client_issues", "client_metrics_1h", "quota_utilization_committed")
    rows = clickhouse.store.query(
        "SELECT table, name FROM system.columns AS c INNER JOIN system.tables AS t ON t.database = c.database"
        f" AND t.name = c.table WHERE c.database = 'headroom' AND c.comment = '' AND t.engine = 'View'"
        f" AND c.table NOT IN {repeating}"
    )
    assert rows == []


_NOW = {
    "headroom_now": "client_id, level, round(utilization, 2), window_s",
    "near_limit": "client_id",
    "throttled_now": "client_id, muted_ms BETWEEN 2000 AND 3500",
    "quota_groups": "client_id",
    "usage_by_user": "user, clients, throttled",
    "telemetry_coverage": "client_id, status",
}


def test_live_views_list_current_clients(clickhouse: RunningClickHouse) -> None:
    """Three minutes of two clients, the computation of the newest whole minute, and the views of now."""
    store, end_ms, judged = clickhouse.store, 0, {}
    while now_ms() - end_ms > 15_000:  # once more if that took so long that the minute was the newest no more
        end_ms = now_ms() // 1000 * 1000
        cluster, seconds = f"now-{end_ms}", [end_ms - 1000 * ago for ago in range(180)]
        write(store, [sample(cluster, ts_ms, 850.0) for ts_ms in seconds], cluster)
        slow = [
            sample(cluster, ts_ms, 100.0, client_id="slow", throttle_ms=float(muted_ms), muted_ms=muted_ms)
            for ts_ms in seconds
            for muted_ms in (500 if ts_ms % 10_000 == 0 else 0,)
        ]
        write(store, slow, f"{cluster}-slow")
        compute_levels(store, end_ms // MINUTE_MS * 60 - 60)
        judged = {
            view: sorted(store.query(f"SELECT {columns} FROM headroom.{view} WHERE cluster = '{cluster}'"))
            for view, columns in _NOW.items()
        }
    assert judged == {
        "headroom_now": [("app", "warn", 0.85, 60), ("slow", "throttled", 0.1, 60)],
        "near_limit": [("app",), ("slow",)],
        "throttled_now": [("slow", 1)],
        "quota_groups": [("app",), ("slow",)],
        "usage_by_user": [("alice", 2, 1)],
        "telemetry_coverage": [("app", "never asked"), ("slow", "never asked")],
    }


def test_late_rows_replace_the_levels_of_the_whole_minute(clickhouse: RunningClickHouse) -> None:
    """Rows that arrive late replace the whole minute: a client that was below its limit is not shown twice."""
    start_ms, levels = 0, []
    while now_ms() - start_ms > 85_000:
        start_ms = past_minute(1)
        cluster = f"late-{now_ms()}"
        early = [sample(cluster, start_ms + 1000 * second, 300.0) for second in range(60)]
        for rows in (early, [row._replace(gateway_id="late", rate=600.0) for row in early]):
            write(clickhouse.store, rows, f"{cluster}-{rows[0].gateway_id}")
            compute_levels(clickhouse.store, start_ms // 1000)
            asked = f"SELECT level FROM headroom.headroom_now WHERE cluster = '{cluster}'"
            levels.append([str(level) for (level,) in clickhouse.store.query(asked)])
    assert levels[-2:] == [["ok"], ["warn"]]
