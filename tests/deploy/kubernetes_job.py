"""quota-headroom by Spark's Kubernetes scheduler: driver and executors are started by the image's entry point.

    python -m tests.deploy.kubernetes_job

Kubernetes itself is replaced by an API that runs pods as processes (tests/kit/kubernetes_api.py). Exits with 1 unless
the job publishes the rows of a local session. About 2 minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from exporters.clickhouse.connection import PASSWORD
from spark_jobs.jobs import quota_headroom
from tests.kit.clickhouse import running_clickhouse
from tests.kit.job_rows import CLUSTER, START, committed, fill
from tests.kit.kubernetes_api import kubernetes_api
from tests.kit.spark_cluster import EXECUTORS

ENTRYPOINT = Path(__file__).parents[2] / "deploy" / "spark" / "entrypoint.sh"
JOB = quota_headroom.__file__
INSTANCES = 2
TIMEOUT_S = 600.0
CONF = {
    **EXECUTORS,
    "spark.executor.instances": str(INSTANCES),
    "spark.kubernetes.container.image": "headroom",
    "spark.kubernetes.executor.disableConfigMap": "true",
    "spark.kubernetes.executor.enableApiWatcher": "false",
    "spark.kubernetes.executor.apiPollingInterval": "2s",
}


def main() -> int:
    with tempfile.TemporaryDirectory() as name, running_clickhouse(Path(name) / "clickhouse") as clickhouse:
        fill(clickhouse)
        between = ["--from", str(START // 1000), "--to", str(START // 1000 + 180), "--cluster", CLUSTER]
        options: list[str | Path] = [JOB, "--url", clickhouse.writer.url, *between, "--output", "json"]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # as in the image: its Python is the first
        os.environ.update({"PATH": path, PASSWORD: clickhouse.server.password})
        subprocess.run([sys.executable, *options], check=True, stdout=subprocess.DEVNULL, timeout=TIMEOUT_S)
        here = committed(clickhouse)
        pods = Path(name) / "pods"
        pods.mkdir()
        with kubernetes_api(ENTRYPOINT, pods) as url, (pods / "driver.log").open("wb") as log:
            settings = [part for name, value in CONF.items() for part in ("--conf", f"{name}={value}")]
            command: list[str | Path] = [ENTRYPOINT, "driver", "--master", f"k8s://{url}", *settings, *options]
            environment = {**os.environ, "SPARK_DRIVER_BIND_ADDRESS": "127.0.0.1"}
            done = subprocess.run(command, env=environment, stdout=log, stderr=log, timeout=TIMEOUT_S, check=False)
        versions = f"SELECT uniqExact(run_id) FROM headroom.quota_utilization WHERE cluster = '{CLUSTER}'"
        runs = clickhouse.store.query(versions)[0][0]
        tasks = [file.read_text().count("Finished task") for file in sorted(pods.glob("*-exec-*.log"))]
        same = committed(clickhouse) == here
        print(f"exit={done.returncode} runs={runs} rows={len(here)} same={same} tasks={tasks}")
        succeeded = done.returncode == 0 and runs == 2 and same and len(tasks) == INSTANCES and all(tasks)
        if not succeeded:
            for file in pods.glob("*.log"):
                print(f"{file.name}: {file.read_text(errors='replace')[-6000:]}", file=sys.stderr)
        return 0 if succeeded else 1


if __name__ == "__main__":
    sys.exit(main())
