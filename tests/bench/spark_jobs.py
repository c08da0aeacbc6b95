"""CPU and memory of quota-headroom, against plain SQL over the same windows on the same server.

    python -m tests.bench.spark_jobs [--data DIR] [--clients N] [ROWS ...], or `make bench SIZES="120000 1000000"`

The plain SQL is tests/bench/kit/yardstick.py, by another hand: the windows alone, no levels, hysteresis or telemetry,
and no writes. It has to give the same numbers as the product's query, `_windows`. The job runs in a separate process;
its CPU includes that of Spark's JVM and Python workers, and the server's. `_fixed` is what remains of it after 1.5
times the plain SQL, `_one_client` the product's query with half of the rows from one client. Memory is the greatest sum
of the processes' proportional set sizes, and `_slice_memory` the server's for the largest query of a task. Whole hours
of a range come from usage_1m, which is stored before the job (`_storing_usage_1m`). Merges are stopped
meanwhile, because their CPU would count as that of whatever runs. 100,000,000 rows take a quarter of an hour; half of
them from one client are tried up to 10,000,000. Rows in DIR are kept for the next run of the same sizes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from quota_metrics.levels.windows_query import SETTINGS, Samples, WindowsQuery
from spark_jobs.clickhouse.source import clickhouse_of, is_divided
from spark_jobs.jobs.usage_windows import counted, refresh, slices_of
from spark_jobs.time_range import TimeRange
from tests.bench.figure import tell
from tests.bench.kit.yardstick import DIFFERENCES, YARDSTICK
from tests.bench.performance import JOB_FIXED_CPU_S, JOB_PEAK_MIB, JOB_QUERY_MIB, JOB_SKEW, JOB_STORED_CPU_S
from tests.kit.clickhouse import RunningClickHouse, connected, running_clickhouse
from tests.kit.many_rows import FILL

CLIENTS = 2000
START = 1_795_168_800_000
WATCH_S = 1.0
POLL_S = 0.05
SQL_MS = 3_600_000
CHUNK = 10_000_000  # rows per INSERT
HALF_ROWS = 10_000_000  # up to here the bench also tries half of the rows from one client
DEFAULT_ROWS = (CLIENTS * 60,)  # takes a minute; 1,000,000 rows take minutes on two cores

_TIMES = "ts >= fromUnixTimestamp64Milli({from_ms:Int64}) AND ts < fromUnixTimestamp64Milli({to_ms:Int64})"
# The rows of half of the clients become those of one client, a millisecond apart.
_HALF = """
INSERT INTO headroom.quota_usage
SELECT * REPLACE ({other:String} AS cluster, 'client-0' AS client_id, 'client-0' AS bucket_client_id,
                  'user-0' AS user, 'user-0' AS bucket_user, 1 AS broker_id,
                  ts + toIntervalMillisecond(intDiv(toUInt32(substring(client_id, 8)), 2)) AS ts)
FROM headroom.quota_usage WHERE cluster = {cluster:String} AND toUInt32(substring(client_id, 8)) % 2 = 0 AND {times}
UNION ALL
SELECT * REPLACE ({other:String} AS cluster)
FROM headroom.quota_usage WHERE cluster = {cluster:String} AND toUInt32(substring(client_id, 8)) % 2 = 1 AND {times}
""".replace("{times}", _TIMES)
_PRESENT = f"SELECT count() FROM headroom.quota_usage WHERE cluster = {{cluster:String}} AND {_TIMES}"
_PEAK = "SELECT max(peak_memory_usage) FROM system.processes WHERE position(query, 'AS usage_rank') > 0"


def _windows(*, stored: bool, divided: bool = False) -> str:
    return WindowsQuery(60, Samples.MINUTES if stored else Samples.USAGE, divided).usage()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("rows", type=int, nargs="*", default=DEFAULT_ROWS)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        data = asked.data or Path(directory) / "data"
        for rows in asked.rows:
            # A server each: hours that one size has stored in usage_1m would count as up to date for the next.
            with running_clickhouse((data / str(rows)).absolute()) as clickhouse:
                measure(clickhouse, rows, asked.clients, Path(directory))


def measure(clickhouse: RunningClickHouse, rows: int, clients: int, directory: Path) -> None:
    others = "" if clients == CLIENTS else f"_{clients // 1000}k_clients"
    cluster, when = f"rows-{rows}{others}", TimeRange(START, START + -(-rows // clients) * 1000)
    clusters = [cluster] if others or rows > HALF_ROWS else [cluster, f"{cluster}-half"]
    fill(clickhouse, clusters, rows, clients)
    name = f"spark_quota_headroom_{rows // 1000}k_rows{others}"
    sql = plain_sql(clickhouse, cluster, when)
    tell(f"{name}_plain_sql", sql, "cpu_s", sql / rows * 1e6, "per_million_rows")
    query = windows_query(clickhouse, cluster, when)
    tell(f"{name}_windows", query, "cpu_s", query / max(sql, 0.01), "plain_sql_of_the_same_windows")
    compare(clickhouse, cluster, when)
    for skewed in (windows_query(clickhouse, half, when) for half in clusters[1:]):
        tell(f"{name}_one_client", skewed, "cpu_s", skewed / max(query, 0.01) / JOB_SKEW, "goal_1.2_of_windows")
    stored = cpu_s(clickhouse)
    hours = refresh(clickhouse_of(clickhouse.url), "gateway", when.from_ms, when.to_ms)
    stored = (cpu_s(clickhouse) - stored) / len(clusters)
    if hours:
        tell(f"{name}_storing_usage_1m", stored, "cpu_s", stored / max(sql, 0.01), "plain_sql_of_the_same_windows")
    rollup = windows_query(clickhouse, cluster, when, stored=True)
    tell(f"{name}_from_usage_1m", rollup, "cpu_s", rollup / JOB_STORED_CPU_S * 1e8 / rows, "goal_30_per_100m_samples")
    for each in clusters:
        most = slice_mib(clickhouse, each, when)
        tell(f"{name}_slice_memory{each.removeprefix(cluster)}", most, "mib", most / JOB_QUERY_MIB, "goal")
    job(clickhouse, cluster, when, directory, name, sql)


def fill(clickhouse: RunningClickHouse, clusters: list[str], rows: int, clients: int) -> None:
    """Stores the rows unless they are present, in a second cluster the same with half of them from one client. Then
    stops merges."""
    with connected(clickhouse.writer) as client:
        for first in range(0, rows, CHUNK):
            part = {"start": START, "clients": clients, "first": first, "rows": min(CHUNK, rows - first)}
            bounds = {"from_ms": START + first // clients * 1000, "to_ms": START + (first + CHUNK) // clients * 1000}
            known = client.query(_PRESENT, {"cluster": clusters[-1], **bounds}).result_rows[0][0]
            if not known:
                client.command(FILL, {"cluster": clusters[0], **part})
                for half in clusters[1:]:
                    client.command(_HALF, {"cluster": clusters[0], "other": half, **bounds})
        client.command("SYSTEM STOP MERGES")


def plain_sql(clickhouse: RunningClickHouse, cluster: str, when: TimeRange) -> float:
    """CPU time of the server for the yardstick, an hour at a time, since memory is limited."""
    return sum(_spent(clickhouse, f"{YARDSTICK} FORMAT Null", hour) for hour in _hours(cluster, when))


def windows_query(clickhouse: RunningClickHouse, cluster: str, when: TimeRange, *, stored: bool = False) -> float:
    """The same for the product's query of the same windows."""
    query = f"{_windows(stored=stored)} {SETTINGS} FORMAT Null"
    return sum(_spent(clickhouse, query, hour) for hour in _hours(cluster, when))


def compare(clickhouse: RunningClickHouse, cluster: str, when: TimeRange) -> None:
    """Raises AssertionError unless both give the same numbers in the first hour."""
    query = DIFFERENCES.format(yardstick=YARDSTICK, found=_windows(stored=False))
    with connected(clickhouse.writer) as client:
        ((different, windows),) = client.query(f"{query} {SETTINGS}", next(_hours(cluster, when))).result_rows
    assert windows
    assert not different, f"{different} of {windows} windows differ from those of the plain SQL"


def _hours(cluster: str, when: TimeRange) -> Iterator[dict[str, object]]:
    key = {"source": "gateway", "cluster": cluster, "quota_key": "producer_byte_rate", "run": "none"}
    for start in range(when.from_ms, when.to_ms, SQL_MS):
        bounds = {"from_ms": start, "to_ms": min(start + SQL_MS, when.to_ms), "window_ms": when.window_ms}
        yield {**bounds, **key}


def slice_mib(clickhouse: RunningClickHouse, cluster: str, when: TimeRange) -> float:
    """The greatest peak memory of the queries that a job's tasks send, in MiB."""
    reader = clickhouse_of(clickhouse.url)
    pieces = [
        (part, piece)
        for part in counted(reader, when, "gateway", cluster)
        for piece in slices_of(reader, part, os.cpu_count() or 1, {"source": "gateway", "run": "none"})
    ]
    most = 0.0
    for part, piece in pieces:
        done = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            peak = pool.submit(_peak_mib, clickhouse, done)
            query = _windows(stored=part.stored, divided=is_divided(piece))
            _spent(clickhouse, f"{query} {SETTINGS} FORMAT Null", piece)
            done.set()
            most = max(most, peak.result())
    return most


def _peak_mib(clickhouse: RunningClickHouse, done: threading.Event) -> float:
    """The greatest peak memory of the usage queries that run until `done` is set."""
    most = 0
    with connected(clickhouse.writer) as client:
        while not done.wait(POLL_S):
            most = max(most, client.query(_PEAK).result_rows[0][0])
    return most / 2**20


def job(clickhouse: RunningClickHouse, cluster: str, when: TimeRange, directory: Path, name: str, sql: float) -> None:
    """Runs the job over the range in a process of its own; tells its CPU time and memory."""
    server, children = cpu_s(clickhouse), spent_s()
    start_s, end_s = when.from_ms // 1000, when.to_ms // 1000
    asked = ["quota-headroom", "--url", clickhouse.url, "--cluster", cluster, "--from", str(start_s)]
    output = ["--to", str(end_s), "--output", "json", "--path", str(directory / "out.json")]
    peak_mib = _run([sys.executable, "-m", "headroom", "job", *asked, *output])
    server, children = cpu_s(clickhouse) - server, spent_s() - children
    every = server + children
    tell(name, every, "cpu_s", every / max(sql, 0.01), "plain_sql_of_the_same_windows")
    tell(f"{name}_fixed", every - 1.5 * sql, "cpu_s", (every - 1.5 * sql) / JOB_FIXED_CPU_S, "goal")
    tell(f"{name}_peak_memory", peak_mib, "mib", peak_mib / JOB_PEAK_MIB, "goal")
    tell(f"{name}_server", server, "cpu_s", server / max(sql, 0.01), "plain_sql_of_the_same_windows")


def _spent(clickhouse: RunningClickHouse, sql: str, parameters: dict[str, object]) -> float:
    """CPU time of the server during a statement."""
    before = cpu_s(clickhouse)
    with connected(clickhouse.writer) as client:
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
