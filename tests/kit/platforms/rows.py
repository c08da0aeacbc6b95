"""Rows in the tables that views read, and two minutes with levels."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

from clickhouse_connect.driver.client import Client

from tests.kit.clickhouse import QueriedStore
from tests.kit.levels import compute_levels, now_ms, sample, write

_RUN = "61f0c404-5cb3-11e7-907b-a6006ad3dba0"
_HOUR = "toStartOfHour(now('UTC')) - INTERVAL 1 HOUR"
_INSERTS = {
    "client_instances": "'c' AS cluster, generateUUIDv4() AS client_instance_id, 'app' AS client_id,"
    " 'alice' AS principal, 'kgo' AS software_name, '1.20.4' AS software_version, now() - 600 AS first_seen,"
    " now() AS last_seen, 9 AS pushes FROM numbers(20)",
    "cluster_facts": "'c' AS cluster, number % 3 AS broker_id, now() - number AS valid_from, '4.3' AS release,"
    " map('a', 'b') AS configs FROM numbers(9)",
    "topic_samples": "'c' AS cluster, toStartOfMinute(now()) - number AS ts, 1000 AS interval_ms, 'alice' AS user,"
    " 'app' AS client_id, 't' AS topic, 'in' AS direction, 100 AS sampled_bytes, 2 AS sampled_frames, 0.1 AS sample"
    " FROM numbers(180)",
    "quota_limits": "'c' AS cluster, 'alice' AS user, 'producer_byte_rate' AS quota_key,"
    f" {_HOUR} + number AS valid_from, if(number = 2, NULL, 100 + intDiv(number, 2)) AS value FROM numbers(5)",
    "quota_utilization_windows": f"'c' AS cluster, 'gateway' AS source, 60 AS window_s, {_HOUR} AS window_start,"
    f" 1 AS complete, 1 AS rows, toUUID('{_RUN}') AS run_id, 7 AS run_version",
    "quota_utilization": f"'c' AS cluster, 'gateway' AS source, 'producer_byte_rate' AS quota_key, 60 AS window_s,"
    f" {_HOUR} AS window_start, 'alice' AS user, 'app' AS client_id, toUUID('{_RUN}') AS run_id, 7 AS run_version",
    "quota_suggestions": f"'c' AS cluster, 'gateway' AS source, {_HOUR} AS made_at, 'alice' AS user",
    "points": f"'c' AS cluster, 'm' AS metric, {_HOUR} + number AS ts, 'alice' AS principal, 'app' AS client_id,"
    " number % 3 AS series_id, number AS value FROM numbers(50)",
    "series": "'c' AS cluster, 'm' AS metric, number AS series_id, 'gauge' AS kind, 'delta' AS temporality,"
    " map('a', 'b') AS attributes, now64(3) AS last_seen FROM numbers(2)",
    "points_1h": f"'c' AS cluster, 'm' AS metric, {_HOUR} AS bucket, 'alice' AS principal, 1 AS series_id, 5 AS points",
}


def fill(store: QueriedStore, client: Client) -> int:
    """`client`: of the same database. Returns the start of the newest minute, in seconds since the epoch."""
    start_s = now_ms() // 60_000 * 60 - 120
    of_app: dict[str, Any] = {"limit": 1000.0}
    seconds = range(120)
    rows = [sample("c", (start_s + s + 1) * 1000, 990.0, throttle_ms=50.0 * (s % 3), **of_app) for s in seconds]
    rows += [sample("c", (start_s + s + 1) * 1000, 100.0, client_id="b", limit=None) for s in seconds]
    write(store, rows, "usage")
    for table, select in _INSERTS.items():
        names = ", ".join(re.findall(r" AS (\w+)", select))
        client.command(f"INSERT INTO {table} ({names}) SELECT {select}")
    compute_levels(store, start_s, start_s + 60)
    return start_s + 60


def views() -> list[str]:
    """The names of all views."""
    schema = files("deploy") / "clickhouse" / "schema"
    texts = [file.read_text(encoding="utf-8") for file in sorted(schema.iterdir(), key=lambda file: file.name)]
    return re.findall(r"CREATE VIEW IF NOT EXISTS \{\{database\}\}\.(\w+)", "\n".join(texts))
