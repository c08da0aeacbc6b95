"""The Spark session of a job: that of spark-submit, else a small local one without console output."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from spark_jobs.class_archive import mapped
from spark_jobs.java import java_version

OLDEST_JAVA = 17  # minimum version for Spark 4

# Settings on which the jobs' results depend, on any cluster.
_EVERYWHERE = {
    "spark.sql.session.timeZone": "UTC",
    # Rows partitioned by client are not shuffled again for joins by client and window.
    "spark.sql.requireAllClusterKeysForCoPartition": "false",
    # Else each expression takes several more calls to the JVM, to note its line for error messages.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}

# No web UI, no listeners on other interfaces, no files in the working directory.
_LOCAL = {
    "spark.master": "local[*]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Sorts spill beyond it. At 100 million samples the job's processes took 1,483 MiB with it, 1,686 with 768m.
    "spark.driver.memory": "600m",
    "spark.sql.catalogImplementation": "in-memory",
    # With two partitions there is nothing to coalesce: re-planning after each stage costs more than it saves.
    "spark.sql.adaptive.enabled": "false",
    # Compiling the plan of a job takes Janino and the JVM some CPU-seconds: see `plan_for_many_rows`.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # Without compilation each common subexpression is looked up in a cache: slower than evaluating it again.
    "spark.sql.subexpressionElimination.enabled": "false",
    "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "headroom-spark-warehouse"),
}

# By default the JVM interprets methods of more than 8,000 bytes: the generated ones that do most of the work.
_JAVA_OPTIONS = "-XX:-DontCompileHugeMethods -XX:+UseSerialGC"
# Most jobs run for seconds: the C2 compiler would cost more CPU than it saves.
_SHORT_JOB = "-XX:TieredStopAtLevel=1"
_EXIT_S = 300.0  # a JVM that writes the class archive takes some seconds, on a busy machine minutes

# Spark's default of 200 suits a cluster; on one machine it doubles the run time of the job.
_PARTITIONS = "spark.sql.shuffle.partitions"


class JavaError(Exception):
    """Spark cannot start on this machine. The message is a single line."""


@contextmanager
def session(app_name: str, master: str = "", *, long: bool = False) -> Iterator[SparkSession]:
    """Yields the active session if there is one, else a new one that is stopped on exit. `master` is Spark's master
    URL; '' means that of spark-submit, else local. In a JVM that is started for a `long` job C2 compiles, too.

    Raises JavaError when Java is missing or too old.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    started = _start(app_name, master, long=long)
    try:
        yield started
    finally:
        started.stop()


def plan_for_many_rows(spark: SparkSession) -> None:
    """Has plans compiled to Java bytecode, and rows joined by sorting them, which spills to disk: Spark's estimate of
    what ClickHouse returns is a few rows, so it would send all of it to each executor."""
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    spark.conf.set("spark.sql.codegen.wholeStage", "true")
    spark.conf.set("spark.sql.codegen.factoryMode", "FALLBACK")
    spark.conf.set("spark.sql.subexpressionElimination.enabled", "true")


def _start(app_name: str, master: str, *, long: bool) -> SparkSession:
    conf = SparkConf(loadDefaults=False).setAppName(app_name).setAll(list(_EVERYWHERE.items()))
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # under spark-submit the user sets these
        conf.setAll(list(_LOCAL.items()))
        if master:
            conf.setMaster(master)
        else:  # executors elsewhere may get our packages only after their daemon has started
            conf.set("spark.python.daemon.module", "spark_jobs.worker_daemon")
        # Otherwise Spark starts workers with the `python3` on PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        SparkContext(conf=conf, gateway=SparkContext._gateway or _local_jvm(long=long))
    started = SparkSession.builder.config(conf=conf).getOrCreate()
    context = started.sparkContext
    if str(context.master).startswith("local") and not context.getConf().contains(_PARTITIONS):
        started.conf.set(_PARTITIONS, "2")
    return started


def _local_jvm(*, long: bool) -> Any:
    """Starts Spark's JVM, which lives as long as this process, with its output redirected to a temporary file."""
    _require_java()
    options = " ".join((_JAVA_OPTIONS, *([] if long else [_SHORT_JOB]), *mapped()))
    conf = SparkConf(loadDefaults=False).setAll([*_LOCAL.items(), ("spark.driver.extraJavaOptions", options)])
    os.environ.setdefault(
        "SPARK_LAUNCHER_OPTS", f"{_JAVA_OPTIONS} {_SHORT_JOB}"
    )  # of the JVM that only puts the command line together
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
    gateway.proc.stdin.close()  # Spark's JVM detects the end of its Python process by this pipe
    with suppress(subprocess.TimeoutExpired):
        gateway.proc.wait(timeout=_EXIT_S)


def _require_java() -> None:
    """Raises JavaError unless the java that Spark would use exists and is new enough."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    if shutil.which(java) is None:
        raise JavaError(f"no {java} found: Spark needs Java {OLDEST_JAVA} or newer (on PATH, or set JAVA_HOME)")
    version = java_version(java)
    if version < OLDEST_JAVA:
        raise JavaError(f"{java} is version {version}: Spark needs Java {OLDEST_JAVA} or newer")
