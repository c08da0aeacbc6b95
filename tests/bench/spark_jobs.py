"""CPU and memory of quota-headroom, against plain SQL over the same windows on the same server.

    python -m tests.bench.spark_jobs [ROWS ...], or `make bench SIZES="120000 1000000"`

The plain SQL is YARDSTICK, by another hand: the windows alone, no levels, hysteresis or telemetry,
and no writes. It has to give the same numbers as the product's windows. The job runs in a separate process; its CPU
includes that of Spark's JVM and Python workers (`_spark`), and the server's, but not that of the minutes of usage_1m,
which are stored before (`_storing_usage_1m`, as `headroom serve` does). `_windows`: reading these minutes and making
windows of them, in this process and the server. Memory is the greatest sum of the processes' proportional set sizes.
Merges are stopped meanwhile, because their CPU would count as that of whatever runs.
"""

import contextlib
import math
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Self

import psutil

from quota_metrics.minutes.rows import ClientLimits
from quota_metrics.minutes.usage_minutes import complete
from quota_metrics.minutes.windows import windows_of
from spark_jobs.clickhouse.slices import SLICE_OF_MINUTES
from spark_jobs.clickhouse.source import clickhouse_of
from spark_jobs.jobs.usage_windows import count_minutes, slices_of
from spark_jobs.time_range import TimeRange
from tests.bench.figure import tell
from tests.bench.kit.serve import cpu_s
from tests.bench.performance import JOB_PEAK_MIB
from tests.kit.clickhouse import RunningClickHouse, connected, running_clickhouse
from tests.kit.usage_rows import FILL_SECONDS

CLIENTS = 2000
START = 1_795_168_800_000
WATCH_S = 0.25
SQL_MS = 3_600_000
CHUNK = 10_000_000  # rows per INSERT
DEFAULT_ROWS = (CLIENTS * 60, 1_000_000, 10_000_000)

# Plain SQL for the windows of the rows: nothing of it comes from quota_metrics. It takes for granted what the product
# cannot: one gateway, a row for each second, one limit that all rows know, and no duplicates.
_SAMPLES = """
FROM headroom.quota_usage
WHERE cluster = {cluster:String} AND quota_key = {quota_key:String} AND source = 'gateway'
  AND ts >= fromUnixTimestamp64Milli({from_ms:Int64}) AND ts < fromUnixTimestamp64Milli({to_ms:Int64})"""
_SECONDS = "least(60, intDiv({to_ms:Int64}, 1000) - minute)"

# Buckets of one client have its figures; only of shared ones the rates are added up second by second.
YARDSTICK = f"""
WITH clients AS (
    SELECT intDiv(toUnixTimestamp(ts), 60) * 60 AS minute, user, client_id, broker_id, count() AS samples,
           max(throttle_ms) AS throttle_ms, sum(muted_ms) AS muted_ms, sum(bytes) AS bytes, any(`limit`) AS quota,
           any(bucket_user) AS bucket_user, any(bucket_client_id) AS bucket_client_id,
           sum(rate) / {_SECONDS} AS usage, quantileExact(0.95)(rate) AS usage_p95, max(rate) AS usage_max
    {_SAMPLES}
    GROUP BY minute, user, client_id, broker_id
),
shared AS (
    SELECT minute, bucket_user, bucket_client_id, broker_id, count() AS members
    FROM clients
    GROUP BY minute, bucket_user, bucket_client_id, broker_id
    HAVING members > 1
),
together AS (
    SELECT minute, bucket_user, bucket_client_id, broker_id, sum(rate) / {_SECONDS} AS group_usage,
           quantileExact(0.95)(rate) AS group_p95
    FROM (
        SELECT intDiv(toUnixTimestamp(ts), 60) * 60 AS minute, toUnixTimestamp(ts) AS second, bucket_user,
               bucket_client_id, broker_id, sum(rate) AS rate
        {_SAMPLES} AND (bucket_user, bucket_client_id) IN (SELECT bucket_user, bucket_client_id FROM shared)
        GROUP BY minute, second, bucket_user, bucket_client_id, broker_id
    )
    GROUP BY minute, bucket_user, bucket_client_id, broker_id
)
SELECT c.minute AS minute, c.user AS user, c.client_id AS client_id, c.broker_id AS broker_id, samples, throttle_ms,
       muted_ms, bytes, quota, usage, usage_p95, usage_max,
       if(t.minute = 0, usage, t.group_usage) AS group_usage, if(t.minute = 0, usage_p95, t.group_p95) AS group_p95
FROM clients AS c
LEFT JOIN together AS t USING (minute, bucket_user, bucket_client_id, broker_id)"""

# Fields of a Window, and the columns that they have to equal.
NUMBERS = {
    "samples": "samples", "throttle_ms": "throttle_ms", "muted_ms": "muted_ms", "bytes": "bytes", "limit": "quota",
    "usage": "usage", "usage_p95": "usage_p95", "usage_max": "usage_max", "group_usage": "group_usage",
    "group_p95": "group_p95",
}  # fmt: skip


def main(sizes: tuple[int, ...]) -> None:
    for rows in sizes:
        # A server each: hours that one size has stored in usage_1m would count as up to date for the next.
        with tempfile.TemporaryDirectory() as directory, running_clickhouse(Path(directory) / "data") as clickhouse:
            measure(clickhouse, rows, Path(directory))


def measure(clickhouse: RunningClickHouse, rows: int, directory: Path) -> None:
    """Of whole minutes: the plain SQL counts on a row for each second. Raises AssertionError unless the windows of all
    slices are those of the plain SQL."""
    minutes = -(-rows // (60 * CLIENTS))
    cluster, when = f"rows-{rows}", TimeRange(START, START + minutes * 60_000)
    fill(clickhouse, cluster, minutes * 60 * CLIENTS)
    name = f"spark_quota_headroom_{rows // 1000}k_rows"
    of_cluster = {
        "source": "gateway",
        "cluster": cluster,
        "quota_key": "producer_byte_rate",
        "window_ms": when.window_ms,
    }
    before = cpu_s(clickhouse.process)
    with connected(clickhouse.writer) as client:
        for start in range(when.from_ms, when.to_ms, SQL_MS):  # an hour at a time, since memory is limited
            hour = {"from_ms": start, "to_ms": min(start + SQL_MS, when.to_ms)}
            client.command(f"{YARDSTICK} FORMAT Null", {**hour, **of_cluster})
    sql = cpu_s(clickhouse.process) - before
    tell(f"{name}_plain_sql", sql, "cpu_s", sql / rows * 1e6, "per_million_rows")
    stored = cpu_s(clickhouse.process)
    written = complete(clickhouse_of(clickhouse.url), "gateway", when.from_ms, when.to_ms)
    stored = cpu_s(clickhouse.process) - stored
    if written:
        tell(f"{name}_storing_usage_1m", stored, "cpu_s", stored / max(sql, 0.01), "plain_sql_of_the_same_windows")
    reader, spent = clickhouse_of(clickhouse.url), 0.0
    counted = count_minutes(reader, when, "gateway", cluster)
    for piece in slices_of(reader, counted, os.cpu_count() or 1, ClientLimits({})):
        before = cpu_s(clickhouse.process) + time.process_time()
        windows = windows_of(reader.table(SLICE_OF_MINUTES, piece), when.window_s, when.to_ms)
        spent += cpu_s(clickhouse.process) + time.process_time() - before
        by_hand = reader.table(YARDSTICK, piece)
        keys = ("minute", "user", "client_id", "broker_id")
        expected = {tuple(row[key] for key in keys): row for row in by_hand.to_pylist()}
        for row in windows.to_pylist():
            other = expected.pop((row["window_start_ms"] // 1000, row["user"], row["client_id"], row["broker_id"]))
            for mine, theirs in NUMBERS.items():
                assert math.isclose(row[mine], other[theirs], rel_tol=1e-9), (row, other)
        assert not expected
    tell(f"{name}_windows", spent, "cpu_s", spent / max(sql, 0.01), "plain_sql_of_the_same_windows")
    job(clickhouse, cluster, when, directory, name, rows, sql)


def fill(clickhouse: RunningClickHouse, cluster: str, rows: int) -> None:
    """Stores the rows. Then stops merges."""
    with connected(clickhouse.writer) as client:
        for first in range(0, rows, CHUNK):
            part = {"start": START, "clients": CLIENTS, "first": first, "rows": min(CHUNK, rows - first)}
            client.command(FILL_SECONDS, {"cluster": cluster, **part})
        client.command("SYSTEM STOP MERGES")


def options_of(url: str, cluster: str, when: TimeRange) -> list[str]:
    between = ["--from", str(when.from_ms // 1000), "--to", str(when.to_ms // 1000)]
    return ["--url", url, "--cluster", cluster, *between, "--output", "json"]


def job(
    clickhouse: RunningClickHouse, cluster: str, when: TimeRange, directory: Path, name: str, rows: int, sql: float
) -> None:
    """Runs the job over the range in a process of its own; tells its CPU time and memory."""
    server, children = cpu_s(clickhouse.process), spent_s()
    options = [*options_of(clickhouse.url, cluster, when), "--path", str(directory / "out.json")]
    command = [sys.executable, "-m", "headroom", "job", "quota-headroom", *options]
    with subprocess.Popen(command) as process, Descendants(process.pid) as descendants:
        process.wait()
    assert process.returncode == 0, command
    peak_mib = descendants.peak_bytes / 2**20
    server = cpu_s(clickhouse.process) - server
    every = server + spent_s() - children + descendants.workers_s
    tell(name, every, "cpu_s", every / max(sql, 0.01), "plain_sql_of_the_same_windows")
    tell(f"{name}_peak_memory", peak_mib, "mib", peak_mib / JOB_PEAK_MIB, "goal")
    goal = 14.0 + 16.0 * max(rows - 1_000_000, 0) / 9_000_000  # 30 for 10 million
    tell(f"{name}_spark", every - server, "cpu_s", (every - server) / goal, "goal")
    tell(f"{name}_server", server, "cpu_s", server / max(sql, 0.01), "plain_sql_of_the_same_windows")


class Descendants(threading.Thread):
    """Looks at a process and its descendants until the block ends: the peak of their memory, and the CPU time of
    Spark's Python workers. No process waits for these, so it is in that of no other one."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.peak_bytes = 0  # proportional set sizes
        self._pid, self._done = pid, threading.Event()
        self._workers: dict[int, float] = {}

    @property
    def workers_s(self) -> float:
        return sum(self._workers.values())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self.join()

    def run(self) -> None:
        while not self._done.wait(WATCH_S):
            size = 0
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(self._pid)
                for descendant in [process, *process.children(recursive=True)]:
                    with contextlib.suppress(psutil.Error):
                        size += int(descendant.memory_full_info().pss)
                        if is_python_worker(descendant):
                            self._workers[descendant.pid] = sum(descendant.cpu_times()[:2])
            self.peak_bytes = max(self.peak_bytes, size)


def is_python_worker(process: psutil.Process) -> bool:
    """Whether Spark's daemon forked it, whose command line it has."""
    parent = process.parent()
    return parent is not None and all("pyspark.worker" in of.cmdline() for of in (process, parent))


def spent_s() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


if __name__ == "__main__":
    main(tuple(int(argument) for argument in sys.argv[1:]) or DEFAULT_ROWS)
