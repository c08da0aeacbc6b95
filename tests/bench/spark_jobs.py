"""CPU of quota-headroom by process, against plain SQL over the same windows on the same server.

    python -m tests.bench.spark_jobs [ROWS ...], or `make bench SIZES="120000 1000000"`

The SQL is the usage query alone with its result counted: no levels, hysteresis or telemetry, and no writes. The job
runs in a separate process; its CPU includes that of Spark's JVM and Python workers, and the server's.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from spark_jobs.clickhouse.client import ClickHouse
from spark_jobs.clickhouse.rollup import refresh
from spark_jobs.clickhouse.usage_query import SETTINGS, usage
from tests.bench.figure import tell
from tests.kit.clickhouse import RunningClickHouse, running_clickhouse

CLIENTS = 2000
START = 1_795_168_800_000
DEFAULT_ROWS = (CLIENTS * 60,)  # takes a minute; 1,000,000 rows take minutes on two cores

_FILL = """
INSERT INTO headroom.quota_usage (cluster, quota_key, ts, user, client_id, ip, broker_id, bytes, rate, throttle_ms,
    throttled_requests, source, gateway_id, interval_ms, muted_ms, limit, matched_entity, bucket_user, bucket_client_id)
SELECT {cluster:String}, 'producer_byte_rate',
    fromUnixTimestamp64Milli(toInt64({start:Int64} + intDiv(number, {clients:UInt32}) * 1000)),
    concat('user-', toString(number % 50)), concat('client-', toString(number % {clients:UInt32})), '',
    1 + number % {clients:UInt32} % 3, 1000, 1000 * (1 + number % 7) + intHash32(number) % 500,
    if(intHash32(number) % 2000 = 0, 700, 0), 0, 'gateway', 'g', 1000,
    if(intHash32(number) % 2000 = 0, 700, 0), 10000, 'user=<default>, client-id=<default>',
    concat('user-', toString(number % 50)),
    concat('client-', toString(number % {clients:UInt32}))
FROM numbers({rows:UInt64})"""


def main() -> None:
    sizes = [int(size) for size in sys.argv[1:]] or DEFAULT_ROWS
    with tempfile.TemporaryDirectory() as directory, running_clickhouse(Path(directory) / "data") as clickhouse:
        for rows in sizes:
            measure(clickhouse, rows, Path(directory))


def measure(clickhouse: RunningClickHouse, rows: int, directory: Path) -> None:
    cluster, end = f"rows-{rows}", START + -(-rows // CLIENTS) * 1000
    bounds = {"from_ms": START, "to_ms": end, "window_ms": 60_000, "source": "gateway", "cluster": cluster}
    query = {**bounds, "quota_key": "producer_byte_rate", "run": "none"}
    with clickhouse.writer.connect() as client:
        client.command(_FILL, {"cluster": cluster, "start": START, "clients": CLIENTS, "rows": rows})
        sql = cpu_s(clickhouse)
        client.command(f"{usage(60)} {SETTINGS} FORMAT Null", query)
        sql = cpu_s(clickhouse) - sql
        stored = cpu_s(clickhouse)
        refresh(ClickHouse(clickhouse.url), "gateway", START, end)
        stored = cpu_s(clickhouse) - stored
        rollup = cpu_s(clickhouse)
        client.command(f"{usage(60, stored=True)} {SETTINGS} FORMAT Null", query)
        rollup = cpu_s(clickhouse) - rollup
    server, children = cpu_s(clickhouse), spent_s()
    asked = ["quota-headroom", "--url", clickhouse.url, "--cluster", cluster, "--from", str(START // 1000)]
    output = ["--to", str(end // 1000), "--output", "parquet", "--path", str(directory / "out.parquet")]
    subprocess.run([sys.executable, "-m", "headroom", "job", *asked, *output], check=True)
    server, children = cpu_s(clickhouse) - server, spent_s() - children
    name = f"spark_quota_headroom_{rows // 1000}k_rows"
    tell(name, server + children, "cpu_s", (server + children) / max(sql, 0.01), "plain_sql_of_the_same_windows")
    tell(f"{name}_server", server, "cpu_s", server / max(sql, 0.01), "plain_sql_of_the_same_windows")
    tell(f"{name}_from_usage_1m", rollup, "cpu_s", rollup / max(sql, 0.01), "plain_sql_of_the_same_windows")
    tell(f"{name}_storing_usage_1m", stored, "cpu_s", stored / max(sql, 0.01), "plain_sql_of_the_same_windows")


def cpu_s(clickhouse: RunningClickHouse) -> float:
    """CPU time of the server so far."""
    assert clickhouse.server.process is not None
    times = psutil.Process(clickhouse.server.process.pid).cpu_times()
    return float(times.user + times.system)


def spent_s() -> float:
    """CPU time of child processes that have ended."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


if __name__ == "__main__":
    main()
