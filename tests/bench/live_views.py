"""The views of now over 10 M rows of usage and 100 k clients: latency of each query at the SQL endpoint.

python -m tests.bench.live_views

Each view is read as a dashboard reads it: as JSON over HTTP, the first 1,000 rows in the order of a column. Beside them
one metric of one client over an hour, which client_metrics joins with SERIES series. tests.bench.web.pages measures the
pages over the same rows.

Half of the rows are of busy clients, which have a row each second; the other half of clients that take turns, so that
each has a row once in some seven minutes and a minute has some 14,000 clients. All were heard of in the last 15 minutes
as client instances; some have the series and points of a telemetry client.
"""

import statistics
import tempfile
import time
from pathlib import Path

from exporters.clickhouse.client import ClickHouse
from tests.bench.figure import tell
from tests.bench.performance import VIEW_MS
from tests.kit.clickhouse import RunningClickHouse, running_clickhouse
from tests.kit.levels import compute_levels

ROWS, SERIES = 10_000_000, 1_000_000
REPEATS = 40
SHOWN = 1_000
VIEWS = {  # and what a dashboard sorts by
    "headroom_now": "level DESC",
    "throttled_now": "muted_ms DESC",
    "near_limit": "level DESC",
    "silent_clients": "silent_s DESC",
    "bad_client_versions": "instances DESC",
    "quota_changes": "changed_at DESC",
    "usage_by_user": "usage DESC",
    "telemetry_coverage": "client_id",
    "quota_groups": "client_id",
    "gateway_share": "bypassing_rate DESC",
}
_METRIC = """
SELECT ts, value, attributes, software_version FROM headroom.client_metrics
WHERE cluster = 'bench' AND metric = 'org.apache.kafka.producer.metric7' AND principal = 'user-42'
  AND client_id = 'busy-42' AND ts > now() - INTERVAL 1 HOUR
"""

CLUSTER = "bench"
CLIENTS = 100_000
METERS = 460  # rows per second
BUSY = METERS // 2
METRICS = 60  # series of an instance
AHEAD_S = 300  # rows reach into the future, so that the minute which is shown has rows while a bench runs
SHOWN_MINUTES = 15  # of a sparkline
_MERGES_S = 60.0

_USAGE = """
INSERT INTO headroom.quota_usage (cluster, quota_key, ts, user, client_id, ip, broker_id, bytes, rate, throttle_ms,
    throttled_requests, source, gateway_id, interval_ms, limit, limit_known, matched_entity, bucket_user,
    bucket_client_id, muted_ms)
SELECT 'bench', 'producer_byte_rate', toDateTime64(at, 3, 'UTC'), name_of_user, name_of_client, '', meter % 3, 50000,
    40000 + meter * 45, if(number % 500 = 0, 300, 0), 0, 'gateway', 'gw', 1000, 50000, 1,
    'user=<default>, client-id=<default>', name_of_user, if(meter < 20, '', name_of_client),
    if(number % 500 = 0, 300, 0)
FROM
(
    SELECT number, number % {meters} AS meter, {end} - intDiv(number, {meters}) AS at,
           if(meter < {busy}, meter, (at * {turns} + meter - {busy}) % {clients}) AS client,
           concat('user-', toString(client % 50)) AS name_of_user,
           concat(if(meter < {busy}, 'busy-', 'client-'), toString(client)) AS name_of_client
    FROM numbers({first}, {count})
)
"""
_INSTANCES = """
INSERT INTO headroom.client_instances
SELECT 'bench', {instance}, concat(if(number < {busy}, 'busy-', 'client-'), toString(number)),
    concat('user-', toString(number % 50)), 'apache-kafka-java', '4.3.1', '10.0.0.1',
    now64(3) - INTERVAL 1 HOUR, now64(3), 0, 10, 1000
FROM numbers({clients})
"""
_INSTANCE = "toUUID(UUIDNumToString(reverse(reinterpretAsFixedString(toUInt128({number})))))"
_NUMBERED_SERIES = f"""
(
    SELECT number, intDiv(number, {METRICS}) AS client,
           concat('org.apache.kafka.producer.', ['request.latency.avg', 'throttle.time.avg', 'outgoing.byte.total',
                  'metric'][least(number % {METRICS}, 3) + 1], toString(number % {METRICS})) AS metric_name,
           concat(if(client < {BUSY}, 'busy-', 'client-'), toString(client)) AS name_of_client,
           concat('user-', toString(client % 50)) AS name_of_user,
           {_INSTANCE.format(number="client")} AS instance
    FROM numbers({{series}})
)
"""
_SERIES = f"""
INSERT INTO headroom.series
SELECT cityHash64(number), 'bench', metric_name, name_of_user, name_of_client, instance, 'gauge', 'unspecified', 0, '1',
    map('topic', 't'), map('rack', 'r'), 'scope', '1', 'apache-kafka-java', '4.3.1', '10.0.0.1', 1, now64(3)
FROM {_NUMBERED_SERIES}
"""
_POINTS = f"""
INSERT INTO headroom.points (cluster, metric, ts, principal, client_id, client_instance_id, series_id, value)
SELECT 'bench', metric_name, now64(3) - INTERVAL {{age}} MINUTE, name_of_user, name_of_client, instance,
    cityHash64(number), number
FROM {_NUMBERED_SERIES}
"""
_LIMITS = """
INSERT INTO headroom.quota_limits (cluster, user, client_id, quota_key, valid_from, value)
SELECT 'bench', if(number % 2000 = 0, '<default>', concat('user-', toString(number % 2000))),
    if(number % 2000 = 0, '<default>', ''), 'producer_byte_rate', now64(3) - INTERVAL number MINUTE, 50000 + number
FROM numbers(10000)
"""


def fill(server: RunningClickHouse, rows: int, series: int) -> None:
    """Writes all rows in parts as an ingester does, waits for merges, and computes the minutes that pages show."""
    end = int(time.time()) + AHEAD_S
    recent = METERS * (AHEAD_S + 120)
    pieces = [(recent + (rows - recent) * n // 24, (rows - recent) // 24) for n in range(24)]
    pieces += [(recent * n // 30, recent // 30) for n in reversed(range(30))]  # the newest minutes
    for first, count in pieces:
        numbers = {"end": end, "meters": METERS, "busy": BUSY, "turns": METERS - BUSY, "clients": CLIENTS}
        server.store.command(_USAGE.format(**numbers, first=first, count=count), {})
    instance = _INSTANCE.format(number="number")
    for _ in range(3):
        server.store.command(_INSTANCES.format(instance=instance, busy=BUSY, clients=CLIENTS), {})
    server.store.command(_LIMITS, {})
    server.store.command(_SERIES.format(series=series), {})
    for age in (5, 15, 25, 35, 45):
        server.store.command(_POINTS.format(series=series, age=age), {})
    deadline = time.monotonic() + _MERGES_S  # merges of what was inserted would count as CPU of the queries
    while time.monotonic() < deadline and server.store.query("SELECT 1 FROM system.merges LIMIT 1"):
        time.sleep(0.5)
    for minutes_ago in reversed(range(SHOWN_MINUTES)):
        compute_levels(server.store, int(time.time() - 64) // 60 * 60 - 60 * minutes_ago)


def latencies_ms(server: RunningClickHouse, sql: str) -> list[float]:
    """Of each of REPEATS queries, after one that warms the server's caches."""
    took, reader = [], ClickHouse((server.reader,), timeout_s=60)
    for _ in range(REPEATS + 1):
        began = time.perf_counter()
        reader.rows(sql)
        took.append((time.perf_counter() - began) * 1000)
    return took[1:]


def tell_latency(name: str, took_ms: list[float]) -> None:
    p50 = statistics.median(took_ms)
    tell(f"{name}_p50_ms", p50, "ms", p50 / VIEW_MS, f"goal_{VIEW_MS:.0f}_ms")


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, running_clickhouse(Path(directory) / "clickhouse") as server:
        fill(server, ROWS, SERIES)
        for view, order in VIEWS.items():
            tell_latency(
                f"view_{view}", latencies_ms(server, f"SELECT * FROM headroom.{view} ORDER BY {order} LIMIT {SHOWN}")
            )
        tell_latency("client_metric_hour", latencies_ms(server, _METRIC))


if __name__ == "__main__":
    main()
