"""kill -9 of the driver, an executor or the ClickHouse server while quota-headroom runs on a cluster.

    python -m tests.chaos.jobs [SEED KILLS]

Master and workers stay; the driver, a process of this module with the name of the master and more, runs job after job
until it is killed. Each kill uses separate rows, for which
nothing has been published. Half of the kills come at a random moment of the run, half of them shortly after the first
rows of the run are staged, because publishing takes a small part of the run. While the job runs and after the kill
readers must see none or all rows of the run; then the job runs again, and its rows must equal those of an undisturbed
run. Each kill is reported with the seconds that it took, on an idle machine of two cores about 20.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from clickhouse_connect.driver.exceptions import ClickHouseError
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from exporters.clickhouse.errors import StoreError
from spark_jobs.jobs import quota_headroom
from spark_jobs.options import HeadroomOptions
from spark_jobs.time_range import TimeRange
from tests.kit.clickhouse import RunningClickHouse, connected, running_clickhouse
from tests.kit.spark_cluster import EXECUTORS, Cluster, running_cluster, zipped
from tests.kit.usage_rows import FRIDAY_MS

START = FRIDAY_MS
MINUTES = 2
VICTIMS = ("driver", "executor", "clickhouse")
WARM_UP_RUNS = 1
_WAIT_S = 200.0
_LOOK_S = 0.5
_POLL_S = 0.02
_PUBLISHING_S = 0.6  # how long after the first staged rows a kill may come

# `parts`: 1 most rows, 2 a tenth of them, which may arrive late, 3 all.
FILL = """
INSERT INTO headroom.quota_usage (cluster, quota_key, ts, user, client_id, broker_id, rate, throttle_ms, source,
    gateway_id, interval_ms, muted_ms, limit, limit_known, bucket_user, bucket_client_id)
SELECT {cluster:String}, 'producer_byte_rate',
    fromUnixTimestamp64Milli(toInt64({start:Int64} + intDiv(number, 60) * 1000)),
    concat('u', toString(number % 3)) AS client_user, concat('c', toString(number % 60)), number % 2,
    number % 60 * 10 + number % 7, if(number % 60 = 59, 700, 0), 'gateway', 'g', 1000, if(number % 60 = 59, 700, 0),
    if(number % 2 = 0, 500, NULL), number % 2 = 0, client_user, ''
FROM numbers({first:UInt64}, {rows:UInt64})
WHERE bitAnd({parts:UInt8}, if(intHash32(number) % 10 = 0, 2, 1)) > 0"""
ROWS_OF_A_MINUTE = 60 * 60
LIMIT = """
INSERT INTO headroom.quota_limits (cluster, user, client_id, ip, quota_key, value, valid_from)
VALUES ({cluster:String}, '<default>', '', '', 'producer_byte_rate', 500, toDateTime64({from_s:Int64}, 3))"""
ROWS = """
SELECT * EXCEPT (cluster, run_id, run_version) FROM headroom.quota_utilization_committed
WHERE cluster = {cluster:String} ORDER BY window_start, user, client_id"""

_STAGED = "SELECT count() FROM headroom.quota_utilization_staging WHERE cluster = {cluster:String}"
# As a local session has them: compiling plans takes a new driver longer than these few rows.
_CHEAP = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


class Kill(NamedTuple):
    """Who is killed when: `after_s` from the start of the run, or with `staged` from its first staged rows."""

    victim: str
    after_s: float
    staged: bool

    def __str__(self) -> str:
        return f"{self.victim} {self.after_s:.1f} s after {'the first staged rows' if self.staged else 'the start'}"


def write(clickhouse: RunningClickHouse, sql: str, **parameters: object) -> None:
    with connected(clickhouse.writer) as client:
        client.command(sql, parameters)


def read(clickhouse: RunningClickHouse, sql: str, **parameters: object) -> list[Any]:
    with connected(clickhouse.writer) as client:
        return list(client.query(sql, parameters).result_rows)


class Driver:
    """The process of `drive`, in a process group with its JVM."""

    def __init__(self, clickhouse: RunningClickHouse, cluster: Cluster, directory: Path) -> None:
        where = [cluster.url, str(zipped(directory)), clickhouse.url, str(START)]
        self.log = directory / "driver.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.jobs", *where],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            )

    def run(self, name: str) -> str:
        """`succeeded` or `failed`; '' when the driver died."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(f"{name}\n")
            self.process.stdin.flush()
            return self.process.stdout.readline().strip()
        return ""

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


class Field:
    """The processes to kill, and the rows of the job that runs meanwhile."""

    def __init__(self, clickhouse: RunningClickHouse, cluster: Cluster, directory: Path) -> None:
        self.clickhouse = clickhouse
        self.cluster = cluster
        self.directory = directory
        self.driver = Driver(clickhouse, cluster, directory)

    def fill(self, name: str) -> None:
        rows = ROWS_OF_A_MINUTE * MINUTES
        write(self.clickhouse, FILL, cluster=name, start=START, first=0, rows=rows, parts=3)
        write(self.clickhouse, LIMIT, cluster=name, from_s=START // 1000 - 60)

    def rows(self, name: str) -> list[Any]:
        return read(self.clickhouse, ROWS, cluster=name)

    def run(self, name: str) -> None:
        """The job without a kill. Raises AssertionError when it fails."""
        outcome = self.driver.run(name)
        assert outcome == "succeeded", f"{name}: {outcome or 'the driver died'}\n{self.driver.log.read_text()[-4000:]}"

    def disturbed(self, name: str, kill: Kill, expected: list[Any]) -> tuple[str, bool]:
        """The outcome of a run during which a process is killed, and whether there was one to kill. Raises
        AssertionError when a reader sees a part of the rows."""
        outcome: list[str] = []
        driver = self.driver
        running = threading.Thread(target=lambda: outcome.append(driver.run(name)))
        running.start()
        while kill.staged and running.is_alive() and not read(self.clickhouse, _STAGED, cluster=name)[0][0]:
            time.sleep(_POLL_S)
        running.join(kill.after_s)
        killed = running.is_alive() and self._kill(kill.victim)
        deadline = time.monotonic() + _WAIT_S
        while running.is_alive():
            self._look(name, expected)
            running.join(_LOOK_S)
            assert time.monotonic() < deadline, f"{name}: the run did not end in {_WAIT_S:.0f} s"
        self._look(name, expected)
        return outcome[0] or "died", killed

    def _look(self, name: str, expected: list[Any]) -> None:
        with contextlib.suppress(ClickHouseError, OSError):  # it may be the one that was killed
            seen = self.rows(name)
            assert seen in ([], expected), f"{name}: {len(seen)} rows are neither none nor all of the run"

    def _kill(self, victim: str) -> bool:
        if victim == "driver":
            self.driver.kill()
            self.driver = Driver(self.clickhouse, self.cluster, self.directory)
        elif victim == "clickhouse":
            server = self.clickhouse.server
            assert server.process is not None
            server.process.kill()
            server.process.wait()
            server.launch()
            server.wait_ready()
        else:
            executors = [one for worker in self.cluster.workers for one in _executors(worker.pid)]
            if not executors:
                return False
            with contextlib.suppress(psutil.NoSuchProcess):
                executors[0].kill()
        return True


def _executors(worker: int) -> Iterator[psutil.Process]:
    for child in psutil.Process(worker).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):  # many do not live long
            if "CoarseGrainedExecutorBackend" in " ".join(child.cmdline()):
                yield child


def undisturbed(field: Field) -> tuple[list[Any], float]:
    """The rows of a run and how many seconds it takes once the driver is warm."""
    took_s = 0.0
    for number in range(1 + WARM_UP_RUNS):
        name = f"undisturbed-{number}"
        field.fill(name)
        started = time.monotonic()
        field.run(name)
        took_s = time.monotonic() - started
        print(f"{name}: {took_s:.1f} s", flush=True)
    rows = field.rows("undisturbed-0")
    assert rows
    assert field.rows(name) == rows
    return rows, took_s


def chaos(field: Field, seed: int, count: int) -> bool:
    """Whether after each kill the rerun has the rows of an undisturbed run. Raises AssertionError when a run fails that
    is not disturbed, or when a reader sees a part of a run."""
    begun = time.monotonic()
    expected, took_s = undisturbed(field)
    found: Counter[str] = Counter()
    lost = doubled = 0
    drawn = random.Random(seed)
    for number in range(count):  # the victims in turn, each at a random moment of a run
        staged = drawn.random() < 0.5
        after_s = drawn.uniform(0, _PUBLISHING_S) if staged else drawn.uniform(0.05, 1.0) * took_s
        kill = Kill(VICTIMS[(seed + number) % len(VICTIMS)], after_s, staged)
        name, started = f"kill-{number}", time.monotonic()
        field.fill(name)
        outcome, killed = field.disturbed(name, kill, expected)
        field.run(name)
        before, after = Counter(map(repr, expected)), Counter(map(repr, field.rows(name)))
        lost, doubled = lost + (before - after).total(), doubled + (after - before).total()
        found[f"{kill.victim} {'killed' if killed else 'not there'}, run {outcome}"] += 1
        spent_s, all_s = time.monotonic() - started, time.monotonic() - begun
        print(
            f"{number + 1}/{count}: {kill}: {outcome}; {lost=} {doubled=}; {spent_s:.0f} s of {all_s:.0f}", flush=True
        )
    print(f"chaos-jobs seed={seed} kills={count} rows={len(expected)} lost={lost} doubled={doubled}", dict(found))
    return not lost and not doubled


def drive(master: str, packages: str, url: str, start_ms: int) -> None:
    """A Spark driver on a stand-alone cluster. For each line on stdin, the name of a cluster of rows, it runs
    quota-headroom over these rows and prints `succeeded` or `failed`. It ends with its stdin."""
    builder = SparkSession.builder.master(master).config("spark.submit.pyFiles", packages)
    for name, value in {**EXECUTORS, **_CHEAP, "spark.sql.session.timeZone": "UTC"}.items():
        builder = builder.config(name, value)
    builder.getOrCreate()
    when = TimeRange(start_ms, start_ms + MINUTES * 60_000, 60)
    for line in sys.stdin:
        outcome = "succeeded"
        try:
            quota_headroom.run(HeadroomOptions(url, when, cluster=line.strip()))
        except (StoreError, PySparkException, Py4JError, OSError):  # what the death of an executor or server causes
            traceback.print_exc()
            outcome = "failed"
        print(outcome, flush=True)


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends what this process has started
    seed, count = (int(part) for part in sys.argv[1:3]) if len(sys.argv) > 2 else (1, 3)
    with (
        tempfile.TemporaryDirectory() as scratch,
        running_clickhouse(Path(scratch) / "data") as clickhouse,
        running_cluster(Path(scratch)) as cluster,
    ):
        field = Field(clickhouse, cluster, Path(scratch))
        try:
            return 0 if chaos(field, seed, count) else 1
        finally:
            field.driver.kill()


if __name__ == "__main__":
    if len(sys.argv) > 3:
        drive(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        sys.exit(main())
