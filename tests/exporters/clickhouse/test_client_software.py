"""headroom.client_software: known issues of each version, numeric comparison of versions, and active instances."""

from __future__ import annotations

import pytest

from tests.kit.clickhouse import RunningClickHouse

pytestmark = pytest.mark.clickhouse

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
