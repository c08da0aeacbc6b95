"""kill -9 of the driver, an executor or the ClickHouse server while quota-headroom runs on a cluster.

    python -m tests.chaos.jobs [SEED KILLS]

Each kill uses separate rows, for which nothing has been published. After the kill readers must see none or all rows of
the run; then the job runs again, and its rows must equal those of an undisturbed run.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from spark_jobs.jobs import quota_headroom
from tests.kit.clickhouse import RunningClickHouse, running_clickhouse
from tests.kit.spark_cluster import Cluster, running_cluster, submitted

START = 1_795_168_800_000
MINUTES = 3
VICTIMS = ("driver", "executor", "clickhouse")
_WAIT_S = 600.0

_FILL = """
INSERT INTO headroom.quota_usage (cluster, quota_key, ts, user, client_id, broker_id, rate, throttle_ms, source,
    gateway_id, interval_ms, muted_ms, limit, limit_known, bucket_user, bucket_client_id)
SELECT {cluster:String}, 'producer_byte_rate',
    fromUnixTimestamp64Milli(toInt64({start:Int64} + intDiv(number, 60) * 1000)),
    concat('u', toString(number % 3)) AS client_user, concat('c', toString(number % 60)), number % 2,
    number % 60 * 10 + number % 7, if(number % 60 = 59, 700, 0), 'gateway', 'g', 1000, if(number % 60 = 59, 700, 0),
    if(number % 2 = 0, 500, NULL), number % 2 = 0, client_user, ''
FROM numbers({rows:UInt64})"""
_LIMIT = """
INSERT INTO headroom.quota_limits (cluster, user, client_id, ip, quota_key, value, valid_from)
VALUES ({cluster:String}, '<default>', '', '', 'producer_byte_rate', 500, toDateTime64({from_s:Int64}, 3))"""
_ROWS = """
SELECT * EXCEPT (cluster, run_id, run_version) FROM headroom.quota_utilization_committed
WHERE cluster = {cluster:String} ORDER BY window_start, user, client_id"""


class Field:
    """The processes to kill and the job that runs meanwhile."""

    def __init__(self, clickhouse: RunningClickHouse, cluster: Cluster, directory: Path) -> None:
        self.clickhouse = clickhouse
        self.cluster = cluster
        self.directory = directory

    def fill(self, name: str) -> None:
        with self.clickhouse.writer.connect() as client:
            client.command(_FILL, {"cluster": name, "start": START, "rows": 60 * 60 * MINUTES})
            client.command(_LIMIT, {"cluster": name, "from_s": START // 1000 - 60})

    def rows(self, name: str) -> list[Any]:
        with self.clickhouse.writer.connect() as client:
            return list(client.query(_ROWS, {"cluster": name}).result_rows)

    def submit(self, name: str) -> subprocess.Popen[bytes]:
        between = ["--from", str(START // 1000), "--to", str(START // 1000 + 60 * MINUTES), "--cluster", name]
        options = ["--url", self.clickhouse.url, *between, "--output", "json", "--path", os.devnull]
        return submitted(self.directory, Path(quota_headroom.__file__), self.cluster.url, options)

    def kill(self, victim: str, driver: subprocess.Popen[bytes]) -> bool:
        """Kills the process; returns whether there was one."""
        if victim == "driver":
            os.killpg(driver.pid, signal.SIGKILL)
        elif victim == "clickhouse":
            self._restart()
        else:
            executors = [one for worker in self.cluster.workers for one in _executors(worker.pid)]
            if not executors:
                return False
            random.choice(executors).kill()
        return True

    def _restart(self) -> None:
        server = self.clickhouse.server
        assert server.process is not None
        server.process.kill()
        server.process.wait()
        server.launch()
        server.wait_ready()


def _executors(worker: int) -> list[psutil.Process]:
    children = psutil.Process(worker).children(recursive=True)
    return [child for child in children if "CoarseGrainedExecutorBackend" in " ".join(child.cmdline())]


def finished(driver: subprocess.Popen[bytes]) -> int:
    """Its exit code."""
    driver.communicate(timeout=_WAIT_S)
    return driver.returncode


def disturb(field: Field, name: str, victim: str, after_s: float, expected: list[Any]) -> str:
    """The outcome of the run. Raises AssertionError when readers saw a part of it, or different rows after the
    rerun."""
    field.fill(name)
    driver = field.submit(name)
    time.sleep(after_s)
    alive = driver.poll() is None
    killed = alive and field.kill(victim, driver)
    code = finished(driver)
    seen = field.rows(name)
    assert seen in ([], expected), f"{name}: {len(seen)} rows are neither none nor all of the run"
    assert finished(field.submit(name)) == 0, f"{name}: the rerun failed"
    assert field.rows(name) == expected, f"{name}: the rerun has other rows"
    return f"{victim} {'killed' if killed else 'was not there'}, run {'failed' if code else 'succeeded'}"


def main() -> None:
    seed, kills = (int(part) for part in sys.argv[1:3]) if len(sys.argv) > 2 else (1, 3)
    drawn = random.Random(seed)
    with (
        tempfile.TemporaryDirectory() as scratch,
        running_clickhouse(Path(scratch) / "data") as clickhouse,
        running_cluster(Path(scratch)) as cluster,
    ):
        field = Field(clickhouse, cluster, Path(scratch))
        field.fill("undisturbed")
        started = time.monotonic()
        assert finished(field.submit("undisturbed")) == 0, (Path(scratch) / "driver.log").read_text()[-4000:]
        took_s = time.monotonic() - started
        expected = field.rows("undisturbed")
        assert expected
        found: Counter[str] = Counter()
        for number in range(kills):
            victim, after_s = VICTIMS[(seed + number) % len(VICTIMS)], drawn.uniform(0.3, 1.0) * took_s
            outcome = disturb(field, f"kill-{number}", victim, after_s, expected)
            found[outcome] += 1
            print(f"{number + 1}: after {after_s:.1f} of {took_s:.1f} s: {outcome}", flush=True)
    print(f"seed={seed} kills={kills} rows={len(expected)} lost=0 doubled=0", dict(found))


if __name__ == "__main__":
    main()
