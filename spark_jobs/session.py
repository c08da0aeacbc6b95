"""The Spark session of a job: the one that spark-submit brings, else a small quiet one on this machine."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from spark_jobs.java import java_version

OLDEST_JAVA = 17  # what Spark 4 needs

# What the jobs' results depend on, wherever they run.
_EVERYWHERE = {
    "spark.sql.session.timeZone": "UTC",
    # Rows that are partitioned by client need not be shuffled again to be joined by client and window.
    "spark.sql.requireAllClusterKeysForCoPartition": "false",
}

# No pages, nothing on other interfaces, nothing left in the working directory.
_LOCAL = {
    "spark.master": "local[*]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # A job lasts seconds: the optimising compiler would spend more than it saves.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.catalogImplementation": "in-memory",
    # With two partitions there is nothing to coalesce: planning anew after each stage costs more than it saves.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "headroom-spark-warehouse"),
}

# Spark's own default, 200, is for a cluster: on one machine it makes the job twice as long.
_PARTITIONS = "spark.sql.shuffle.partitions"


class JavaError(Exception):
    """Spark cannot start here. The text is one line."""


@contextmanager
def session(app_name: str, master: str = "") -> Iterator[SparkSession]:
    """The active session if there is one, else a new one that is stopped at the end. `master` is Spark's: '' takes that
    of spark-submit, else this machine.

    Raises JavaError when there is no Java, or too old a one.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    started = _start(app_name, master)
    try:
        yield started
    finally:
        started.stop()


def _start(app_name: str, master: str) -> SparkSession:
    conf = SparkConf(loadDefaults=False).setAppName(app_name).setAll(list(_EVERYWHERE.items()))
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # not under spark-submit, whose user decides about these
        conf.setAll(list(_LOCAL.items()))
        if master:
            conf.setMaster(master)
        # Spark starts workers with the `python3` of PATH otherwise.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        SparkContext(conf=conf, gateway=_local_jvm())
    started = SparkSession.builder.config(conf=conf).getOrCreate()
    context = started.sparkContext
    if str(context.master).startswith("local") and not context.getConf().contains(_PARTITIONS):
        started.conf.set(_PARTITIONS, "2")
    return started


@cache
def _local_jvm() -> Any:
    """Spark's JVM, once per process: its output goes to a temporary file, not between our lines."""
    _require_java()
    conf = SparkConf(loadDefaults=False).setAll(list(_LOCAL.items()))
    with tempfile.TemporaryFile(prefix="headroom-spark-") as log:
        try:
            gateway = launch_gateway(conf, {"stdout": log, "stderr": log})  # type: ignore[no-untyped-call] # PySpark's
        except PySparkRuntimeError as exc:
            log.seek(0)
            said = [line for line in log.read().decode(errors="replace").splitlines() if "WARN" not in line]
            raise JavaError(f"cannot start Spark: {said[0] if said else exc}") from exc
    atexit.register(_stop_jvm, gateway)
    return gateway


def _stop_jvm(gateway: Any) -> None:
    gateway.shutdown()
    gateway.proc.stdin.close()  # by which Spark's JVM notices that its Python has ended
    gateway.proc.wait(timeout=10)


def _require_java() -> None:
    """Raises JavaError unless the java that Spark would use exists and is new enough."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    if shutil.which(java) is None:
        raise JavaError(f"no {java} found: Spark needs Java {OLDEST_JAVA} or newer (on PATH, or set JAVA_HOME)")
    version = java_version(java)
    if version < OLDEST_JAVA:
        raise JavaError(f"{java} is version {version}: Spark needs Java {OLDEST_JAVA} or newer")
