"""CPU and memory of quota-headroom, against plain SQL over the same windows on the same server.

    python -m tests.bench.spark_jobs [ROWS ...], or `make bench SIZES="120000 1000000"`

The SQL is the usage query alone with its result counted: no levels, hysteresis or telemetry, and no writes. The job
runs in a separate process; its CPU includes that of Spark's JVM and Python workers, and the server's. `_fixed` is what
remains of it after 1.5 times the SQL, `_one_client` the SQL with half of the rows from one client. Memory is the
greatest sum of the processes' proportional set sizes.
"""

from __future__ import annotations

import contextlib
import resource
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import psutil

from spark_jobs.clickhouse.client import ClickHouse
from spark_jobs.clickhouse.rollup import refresh
from spark_jobs.clickhouse.usage_query import SETTINGS, usage
from tests.bench.figure import tell
from tests.kit.clickhouse import RunningClickHouse, running_clickhouse

CLIENTS = 2000
START = 1_795_168_800_000
FIXED_CPU_S, PEAK_MIB = 15.0, 1536.0  # goals
WATCH_S = 1.0
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
# The rows of half of the clients become those of one client, a few milliseconds apart.
_HALF = """
INSERT INTO headroom.quota_usage
SELECT * REPLACE ({other:String} AS cluster, 'client-0' AS client_id, 'client-0' AS bucket_client_id,
                  'user-0' AS user, 'user-0' AS bucket_user, 1 AS broker_id,
                  ts + toIntervalMillisecond(toUInt32(substring(client_id, 8)) % 500) AS ts)
FROM headroom.quota_usage WHERE cluster = {cluster:String} AND toUInt32(substring(client_id, 8)) % 2 = 0
UNION ALL
SELECT * REPLACE ({other:String} AS cluster)
FROM headroom.quota_usage WHERE cluster = {cluster:String} AND toUInt32(substring(client_id, 8)) % 2 = 1"""


def main() -> None:
    sizes = [int(size) for size in sys.argv[1:]] or DEFAULT_ROWS
    with tempfile.TemporaryDirectory() as directory, running_clickhouse(Path(directory) / "data") as clickhouse:
        for rows in sizes:
            measure(clickhouse, rows, Path(directory))


def measure(clickhouse: RunningClickHouse, rows: int, directory: Path) -> None:
    cluster, end = f"rows-{rows}", START + -(-rows // CLIENTS) * 1000
    bounds = {"from_ms": START, "to_ms": end, "window_ms": 60_000, "source": "gateway"}
    query = {**bounds, "cluster": cluster, "quota_key": "producer_byte_rate", "run": "none"}
    with clickhouse.writer.connect() as client:
        client.command(_FILL, {"cluster": cluster, "start": START, "clients": CLIENTS, "rows": rows})
        sql = _spent(clickhouse, f"{usage(60)} {SETTINGS} FORMAT Null", query)
        client.command(_HALF, {"cluster": cluster, "other": f"{cluster}-half"})
        skewed = _spent(clickhouse, f"{usage(60)} {SETTINGS} FORMAT Null", {**query, "cluster": f"{cluster}-half"})
        stored = cpu_s(clickhouse)
        refresh(ClickHouse(clickhouse.url), "gateway", START, end)
        stored = cpu_s(clickhouse) - stored
        rollup = _spent(clickhouse, f"{usage(60, stored=True)} {SETTINGS} FORMAT Null", query)
    server, children = cpu_s(clickhouse), spent_s()
    asked = ["quota-headroom", "--url", clickhouse.url, "--cluster", cluster, "--from", str(START // 1000)]
    output = ["--to", str(end // 1000), "--output", "parquet", "--path", str(directory / "out.parquet")]
    peak_mib = _run([sys.executable, "-m", "headroom", "job", *asked, *output])
    server, children = cpu_s(clickhouse) - server, spent_s() - children
    name = f"spark_quota_headroom_{rows // 1000}k_rows"
    every = server + children
    tell(name, every, "cpu_s", every / max(sql, 0.01), "plain_sql_of_the_same_windows")
    tell(f"{name}_fixed", every - 1.5 * sql, "cpu_s", (every - 1.5 * sql) / FIXED_CPU_S, "goal")
    tell(f"{name}_peak_memory", peak_mib, "mib", peak_mib / PEAK_MIB, "goal")
    tell(f"{name}_server", server, "cpu_s", server / max(sql, 0.01), "plain_sql_of_the_same_windows")
    tell(f"{name}_one_client", skewed, "cpu_s", skewed / max(sql, 0.01), "plain_sql_of_the_same_windows")
    tell(f"{name}_from_usage_1m", rollup, "cpu_s", rollup / max(sql, 0.01), "plain_sql_of_the_same_windows")
    tell(f"{name}_storing_usage_1m", stored, "cpu_s", stored / max(sql, 0.01), "plain_sql_of_the_same_windows")


def _spent(clickhouse: RunningClickHouse, sql: str, parameters: dict[str, object]) -> float:
    """CPU time of the server during a statement."""
    before = cpu_s(clickhouse)
    with clickhouse.writer.connect() as client:
        client.command(sql, parameters)
    return cpu_s(clickhouse) - before


def _run(command: list[str]) -> float:
    """Runs the job; returns the peak memory of its processes in MiB. Raises CalledProcessError."""
    done, peak = threading.Event(), [0]
    with subprocess.Popen(command) as process:

        def watch() -> None:
            while not done.wait(WATCH_S):
                peak[0] = max(peak[0], _memory(process.pid))

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            code = process.wait()
        finally:
            done.set()
            watching.join()
    if code:
        raise subprocess.CalledProcessError(code, command)
    return peak[0] / 2**20


def _memory(pid: int) -> int:
    """Proportional set size of a process and its descendants, bytes."""
    found = 0
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                found += int(each.memory_full_info().pss)
    return found


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
