"""quota-headroom on a stand-alone cluster of two workers, beside a local run over the same rows.

    python -m tests.bench.spark.cluster [ROWS]

CPU is that of Spark and its Python workers: driver, master, workers and executors; ClickHouse's is the same for both.
The master and its workers run already, the driver's start counts.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from exporters.clickhouse.connection import PASSWORD
from spark_jobs.jobs import quota_headroom
from spark_jobs.time_range import TimeRange
from tests.bench.figure import tell
from tests.bench.spark_jobs import CLIENTS, START, Descendants, fill, is_python_worker, options_of, spent_s
from tests.kit.clickhouse import running_clickhouse
from tests.kit.spark_cluster import running_cluster, submitted

ROWS, WORKERS, CLUSTER = 1_000_000, 2, "beside"


def tree_s(processes: tuple[subprocess.Popen[bytes], ...]) -> float:
    """CPU time of processes, their descendants, and those of these that have ended; without Python workers."""
    found = 0.0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            parent = psutil.Process(process.pid)
            for each in [parent, *parent.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    found += 0.0 if is_python_worker(each) else sum(each.cpu_times()[:4])
    return found


def on_a_cluster(directory: Path, options: list[str]) -> tuple[float, float]:
    with running_cluster(directory, workers=WORKERS) as cluster:
        workers, before, started_s = tree_s(cluster.workers), spent_s(), time.monotonic()
        with (
            Descendants(os.getpid()) as descendants,
            submitted(directory, Path(quota_headroom.__file__), cluster.url, options) as driver,
        ):
            driver.communicate()
        took_s = time.monotonic() - started_s
        assert driver.returncode == 0, (directory / "driver.log").read_text(errors="replace")[-4000:]
        return tree_s(cluster.workers) - workers + spent_s() - before + descendants.workers_s, took_s


def main(rows: int) -> None:
    with tempfile.TemporaryDirectory() as scratch, running_clickhouse(Path(scratch) / "data") as clickhouse:
        os.environ[PASSWORD] = clickhouse.writer.password
        fill(clickhouse, CLUSTER, rows)
        minutes = -(-rows // (60 * CLIENTS))
        options = options_of(clickhouse.writer.url, CLUSTER, TimeRange(START, START + minutes * 60_000))
        before, started_s = spent_s(), time.monotonic()
        with Descendants(os.getpid()) as descendants:
            command = [sys.executable, "-m", "headroom", "job", "quota-headroom", *options]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        local, local_s = spent_s() - before + descendants.workers_s, time.monotonic() - started_s
        cluster, cluster_s = on_a_cluster(Path(scratch), options)
    name = f"spark_cluster_{rows // 1000}k_rows"
    tell(f"{name}_cpu", cluster, "cpu_s", cluster / max(local, 0.01), f"local:{local:.1f}")
    tell(f"{name}_time", cluster_s, "s", cluster_s / local_s, f"local:{local_s:.1f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROWS)
