"""The live views and the web pages over 10 M rows of usage: the server's CPU and the latency of each query.

python -m tests.bench.live_views [ROWS] [SERIES]

Usage: ROWS rows in the six hours that the live views keep, from 460 meters with one row per second (their clients
change every 100 s, which gives 100 k clients), in parts as written by an ingester. Page and API: `headroom serve` over
the same store, each request another search, so that none is answered by its cache. Points: SERIES series of 60 metrics,
and one metric of one client over an hour.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import httpx
import psutil

from tests.bench.figure import tell
from tests.kit.clickhouse import RunningClickHouse, running_clickhouse
from tests.kit.serving import Served

GOAL_MS = 100.0
PAGE_GOAL_MS = 200.0  # at the 95th percentile
REPEATS = 5
REQUESTS = 40
LIFE_S = 100  # of a client
MERGES_S = 60.0
HOURS = 6
VIEWS = (
    "headroom_now",
    "throttled_now",
    "near_limit",
    "silent_clients",
    "bad_client_versions",
    "quota_changes",
    "usage_by_user",
    "telemetry_coverage",
    "quota_groups",
)
_USAGE = """
INSERT INTO headroom.quota_usage (cluster, quota_key, ts, user, client_id, ip, broker_id, bytes, rate, throttle_ms,
    throttled_requests, source, gateway_id, interval_ms, limit, limit_known, matched_entity, bucket_user,
    bucket_client_id, muted_ms)
SELECT 'bench', 'producer_byte_rate', toDateTime64(at, 3, 'UTC'), name_of_user, name_of_client, '', meter % 3, 50000,
    40000 + meter * 20, if(number % 500 = 0, 300, 0), 0, 'gateway', 'gw', 1000, 50000, 1,
    'user=<default>, client-id=<default>', name_of_user, name_of_client, if(number % 500 = 0, 300, 0)
FROM
(
    SELECT number, number % {meters} AS meter, {end} - intDiv(number, {meters}) AS at,
           concat('user-', toString(meter % 50)) AS name_of_user,
           concat('client-', toString(meter), '-', toString(intDiv(at, {life_s}))) AS name_of_client
    FROM numbers({first}, {count})
)
"""
_NUMBERED_SERIES = """
(
    SELECT number, concat('org.apache.kafka.metric.', toString(number % 60)) AS metric_name,
           concat('client-', toString(intDiv(number, 60) % 1000)) AS name_of_client,
           toUUID(UUIDNumToString(reverse(reinterpretAsFixedString(toUInt128(intDiv(number, 60)))))) AS instance
    FROM numbers({series})
)
"""
_SERIES = f"""
INSERT INTO headroom.series
SELECT cityHash64(number), 'bench', metric_name, 'user', name_of_client, instance, 'gauge', 'unspecified', 0, '1',
    map('topic', 't'), map('rack', 'r'), 'scope', '1', 'apache-kafka-java', '4.3.1', '10.0.0.1', 1, now64(3)
FROM {_NUMBERED_SERIES}
"""
_POINTS = f"""
INSERT INTO headroom.points (cluster, metric, ts, principal, client_id, client_instance_id, series_id, value)
SELECT 'bench', metric_name, now64(3) - INTERVAL {{age}} MINUTE, 'user', name_of_client, instance, cityHash64(number),
    number
FROM {_NUMBERED_SERIES}
"""
_METRIC = """
SELECT ts, value, attributes, software_version FROM headroom.client_metrics
WHERE cluster = 'bench' AND metric = 'org.apache.kafka.metric.7' AND principal = 'user' AND client_id = 'client-42'
  AND ts > now() - INTERVAL 1 HOUR
"""


class Cost(NamedTuple):
    """Medians, in ms."""

    cpu_ms: float
    wall_ms: float
    rows: int


def measure(server: RunningClickHouse, sql: str) -> Cost:
    """The server's cost of a query, after one that warms its caches."""
    assert server.server.process is not None
    process = psutil.Process(server.server.process.pid)
    client = server.reader.connect()
    cpu, wall = [], []
    try:
        for _ in range(REPEATS + 1):
            began, used = time.perf_counter(), sum(process.cpu_times()[:2])
            rows = client.query(sql).result_rows
            wall.append((time.perf_counter() - began) * 1000)
            cpu.append((sum(process.cpu_times()[:2]) - used) * 1000)
    finally:
        client.close()
    return Cost(statistics.median(cpu[1:]), statistics.median(wall[1:]), len(rows))


def fill_usage(server: RunningClickHouse, rows: int) -> None:
    """Inserts the rows in 24 inserts, and the last two minutes in 30 more, as an ingester writes every few seconds."""
    meters = max(1, rows // (HOURS * 3600))
    end = int(time.time())
    recent = meters * 120
    pieces = [(recent + (rows - recent) * n // 24, (rows - recent) // 24) for n in range(24)]
    pieces += [(recent * n // 30, recent // 30) for n in reversed(range(30))]
    for first, count in pieces:
        server.store.command(_USAGE.format(end=end, meters=meters, life_s=LIFE_S, first=first, count=count), {})


def wait_for_merges(server: RunningClickHouse) -> None:
    """Merges of what was inserted would count as CPU of the queries; waits for at most MERGES_S."""
    deadline = time.monotonic() + MERGES_S
    while time.monotonic() < deadline and server.store.query("SELECT 1 FROM system.merges LIMIT 1"):
        time.sleep(0.5)


def measure_pages(server: RunningClickHouse, directory: Path) -> None:
    """95th percentile of the first page and of its JSON, one request after the other."""
    os.environ["HEADROOM_CLICKHOUSE_PASSWORD"] = server.writer.password
    with Served(directory, "--clickhouse", server.writer.url) as served, httpx.Client(timeout=60) as browser:
        for name, path in (("page", "/"), ("api", "/api/v1/headroom")):
            took_ms = []
            for number in range(REQUESTS + 1):
                began = time.perf_counter()
                answer = browser.get(f"http://{served.http}{path}", params={"q": f"client-{number}", "limit": "100"})
                took_ms.append((time.perf_counter() - began) * 1000)
                assert answer.status_code == 200
                assert "client-" in answer.text
            p95 = statistics.quantiles(took_ms[1:], n=20)[-1]
            tell(f"web_{name}_p95_ms", p95, "ms", p95 / PAGE_GOAL_MS, f"goal_{PAGE_GOAL_MS:.0f}_ms")


def main(rows: int, series: int) -> None:
    with tempfile.TemporaryDirectory() as directory, running_clickhouse(Path(directory) / "clickhouse") as server:
        fill_usage(server, rows)
        wait_for_merges(server)
        for view in VIEWS:
            cost = measure(server, f"SELECT * FROM headroom.{view}")
            tell(f"view_{view}_ms", cost.cpu_ms, "cpu_ms", cost.cpu_ms / GOAL_MS, f"goal_{GOAL_MS:.0f}_ms")
        measure_pages(server, Path(directory))
        server.store.command(_SERIES.format(series=series), {})
        for age in (5, 15, 25, 35, 45):
            server.store.command(_POINTS.format(series=series, age=age), {})
        cost = measure(server, _METRIC)
        tell("client_metric_hour_ms", cost.cpu_ms, "cpu_ms", cost.cpu_ms / GOAL_MS, f"goal_{GOAL_MS:.0f}_ms")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:] or ("10000000", "1000000")))
