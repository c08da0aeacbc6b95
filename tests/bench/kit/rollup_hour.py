"""`python -m tests.bench.kit.rollup_hour [SERIES [POINTS]]`: the rollup of an hour in a managed server's memory.

SERIES (12,000,000) series, 12 metrics of each client, with POINTS (1) points each, are made by SQL on the server, which
has the memory limit of `headroom serve --data`. Prints the CPU per row, the time and the peak memory of the slices, and
checks that the rollup has every series and point once.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import psutil
from clickhouse_connect.driver.client import Client

from exporters.clickhouse.connection import WRITER, Endpoint
from exporters.clickhouse.managed.configuration import ServerSettings, write_document
from exporters.clickhouse.store import Store
from quota_metrics.verdict.thresholds import SCHEMA_VALUES
from telemetry.ingest.rollups import ROLL_UP, slices
from tests.bench.kit.serve import cpu_s, waited
from tests.kit.clickhouse import LaunchedServer, connected

METRICS = 12
ROWS_AT_ONCE = 500_000  # a batch of the storage worker
PATIENCE_S = 300.0
HOUR = 3600

# Numbers of series are in the order of the sorting key: metric, then client.
COLUMNS = """
    cityHash64(number) AS series_id, 'bench' AS cluster, 'metric-' || toString(intDiv(number, {clients})) AS metric,
    '' AS principal, 'client-' || leftPad(toString(number % {clients}), 8, '0') AS client_id,
    reinterpret(sipHash128(number % {clients}), 'UUID') AS client_instance_id
"""
SERIES = """
INSERT INTO headroom.series
    (series_id, cluster, metric, principal, client_id, client_instance_id, kind, temporality, last_seen)
SELECT {columns}, 'sum', 'delta', now64(3) FROM numbers({first}, {count})
"""
POINTS = """
INSERT INTO headroom.points (series_id, cluster, metric, principal, client_id, client_instance_id, ts, value)
SELECT {columns}, toDateTime64({ts_s}, 3, 'UTC') + number % 60, number FROM numbers({first}, {count})
"""
PEAK = """
SELECT max(memory_usage), count() FROM system.query_log
WHERE type = 'QueryFinish' AND query LIKE '%INSERT INTO headroom.points_1h%' AND query_kind = 'Insert'
"""
FOUND = "SELECT count(), sum(points) FROM headroom.points_1h"


def fill(client: Client, series: int, points: int, hour: int) -> None:
    """Writes the hour's rows in batches like those of the storage worker."""
    columns = COLUMNS.format(clients=max(1, series // METRICS))
    for first in range(0, series, ROWS_AT_ONCE):
        part = {"columns": columns, "first": first, "count": min(ROWS_AT_ONCE, series - first)}
        client.command(SERIES.format(**part))
        for turn in range(points):
            client.command(POINTS.format(ts_s=hour * HOUR + turn * (HOUR - 60) // points, **part))
    waited(lambda: client.command("SELECT count() FROM system.merges") == 0, PATIENCE_S, 1.0)


def measure(server: LaunchedServer, series: int, points: int) -> None:
    """Fills the hour before this one, computes its rollup and prints the figures."""
    endpoint = Endpoint("http", server.host, server.http_port, WRITER, server.password)
    store = Store(endpoint)
    store.migrate(SCHEMA_VALUES)
    store.close()
    assert server.process is not None
    process = psutil.Process(server.process.pid)
    hour = int(time.time()) // HOUR - 1
    with connected(endpoint, send_receive_timeout=PATIENCE_S) as client:
        fill(client, series, points, hour)
        before_s, began_s = cpu_s(process), time.monotonic()
        parts = slices(hour, series)
        for part in parts:
            client.command(ROLL_UP, parameters=part.parameters())
        took_s, used_s = time.monotonic() - began_s, cpu_s(process) - before_s
        waited(lambda: client.query(PEAK).result_rows[0][1] == len(parts), PATIENCE_S, 1.0)
        [(peak, _)] = client.query(PEAK).result_rows
        found = client.query(FOUND).result_rows
    assert [tuple(row) for row in found] == [(series, series * points)], found
    rows = series * points
    print(f"rollup_hour series={series} rows={rows} slices={len(parts)} seconds={took_s:.1f} cpu_s={used_s:.1f}")
    print(f"rollup_hour us_a_row={used_s / rows * 1e6:.2f} peak_mib_a_slice={peak / (1 << 20):.0f}")


def main() -> None:
    series = int(sys.argv[1]) if len(sys.argv) > 1 else 12_000_000
    points = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    with tempfile.TemporaryDirectory(prefix="headroom-rollup-") as directory:
        logs = Path(directory) / "conf.d"
        logs.mkdir()
        table = {"database": "system", "table": "query_log", "flush_interval_milliseconds": 1000}
        write_document(logs / "query_log.xml", {"query_log": table})
        server = LaunchedServer(ServerSettings(Path(directory)))
        try:
            server.launch()
            server.wait_ready()
            measure(server, series, points)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
