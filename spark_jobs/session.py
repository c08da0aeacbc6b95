"""Spark on this machine: its Java, the session of a job, progress on a terminal, and the class archive of its JVM.

    python -m spark_jobs.session

writes the class data archive (JEP 350) for this installation, below its prefix (150 MB): classes that one JVM has
loaded are mapped by the next ones. Without it each job parses and verifies some 15,000 classes, half of the CPU of a
short job. A JVM ignores an archive of other jars or of another Java.
"""

import atexit
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from rich.console import Console

from exporters.machine import threads

OLDEST_JAVA = 8 if pyspark.__version__.startswith("3.") else 17

# Settings on which the jobs' results depend, on any cluster.
_EVERYWHERE = {
    "spark.sql.session.timeZone": "UTC",
    # Else SPARK_CONNECT_MODE, or the package pyspark-connect, makes a session of Spark Connect beside our JVM.
    "spark.api.mode": "classic",
    # Rows partitioned by client are not shuffled again for joins by client and window.
    "spark.sql.requireAllClusterKeysForCoPartition": "false",
    # Else each expression takes several more calls to the JVM, to note its line for error messages.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}

# Of a JVM that a job starts: no web UI, no files in the working directory.
_OWN_JVM = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Sorts spill beyond it. At 100 million samples the job's processes took 1,483 MiB with it, 1,686 with 768m.
    "spark.driver.memory": "600m",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "headroom-spark-warehouse"),
}

# A task of a local session has a Python worker of its own, and the heap of the driver is shared by all of them.
_TASK_BYTES, _MOST_TASKS = 512 << 20, 8

# Of a session without executors elsewhere: no listeners on other interfaces. On a cluster executors have to reach the
# driver.
_LOCAL = dict.fromkeys(("spark.driver.host", "spark.driver.bindAddress"), "127.0.0.1")

# Of any session, unless its user sets them.
_ADAPTIVE = "spark.sql.adaptive.enabled"
_PLANS = {
    # With few partitions there is nothing to coalesce: re-planning after each stage costs more than it saves.
    _ADAPTIVE: "false",
    # Compiling the plan of a job takes Janino and the JVM some CPU-seconds, in the driver and in each executor: see
    # `plan_for_many_rows`.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # Spark 4.3 counts the bytes of a worker's batch after each row, in time that grows with its rows: with 10,000, the
    # default, that took four fifths of the executors' CPU.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
    # Without compilation each common subexpression is looked up in a cache: slower than evaluating it again.
    "spark.sql.subexpressionElimination.enabled": "false",
}

# By default the JVM interprets methods of more than 8,000 bytes: the generated ones that do most of the work.
_JAVA_OPTIONS = "-XX:-DontCompileHugeMethods -XX:+UseSerialGC"
# Most jobs run for seconds: the C2 compiler would cost more CPU than it saves.
_SHORT_JOB = "-XX:TieredStopAtLevel=1"
_ARCHIVE_S = 600
_WRITES = "-XX:ArchiveClassesAtExit"
_JAVA_VERSION_S = 30
_PROGRESS_S = 0.5
_EXIT_S = 300.0  # a JVM that writes the class archive takes some seconds, on a busy machine minutes

# Spark's default is 200: on one machine that doubles the run time of the job, and a small cluster spends it on tasks.
_PARTITIONS = "spark.sql.shuffle.partitions"
_LOCAL_PARTITIONS, _PARTITIONS_PER_CORE = 2, 2
_MOST_OF_CLUSTER = 200  # tasks at once, where executors come later


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
        conf.setAll(list(settings(master).items()))
        # Otherwise Spark starts workers with the `python3` on PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYTHONSAFEPATH", "1")  # else they import modules of the working directory
        SparkContext(conf=conf, gateway=SparkContext._gateway or _local_jvm(long=long))
    started = SparkSession.builder.config(conf=conf).getOrCreate()
    context = started.sparkContext
    plans = dict(_PLANS)
    if is_growing(context):  # the cores that are there say nothing: adaptive plans have as many partitions as rows need
        del plans[_ADAPTIVE]
    else:
        of_cluster = _PARTITIONS_PER_CORE * context.defaultParallelism
        plans[_PARTITIONS] = str(_LOCAL_PARTITIONS if is_local(str(context.master)) else of_cluster)
    for name, value in plans.items():
        if not context.getConf().contains(name):
            started.conf.set(name, value)
    return started


def parallelism(context: SparkContext) -> int:
    """How many tasks can run at once: on the cores that are there, or on those that come."""
    there = max(context.defaultParallelism, 1)
    return max(there, _MOST_OF_CLUSTER) if is_growing(context) else there


def is_growing(context: SparkContext) -> bool:
    """Whether executors come after the session has started: with dynamic allocation, and where a stand-alone cluster
    does not wait for them, as YARN and Kubernetes do."""
    is_dynamic = context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true"
    return is_dynamic or str(context.master).startswith("spark://")


def is_local(master: str) -> bool:
    """Whether tasks run in the driver; '' is the local master of a session that this module starts."""
    return not master or master.startswith("local")


def settings(master: str) -> dict[str, str]:
    """The settings of a session with its own JVM; spark-submit has those of its user instead."""
    if not is_local(master):
        return {**_OWN_JVM, "spark.master": master}
    # Executors elsewhere may get our packages only after their daemon has started.
    daemon = {} if master else {"spark.python.daemon.module": "spark_jobs.worker_daemon"}
    tasks = min(threads(thread_bytes=_TASK_BYTES), _MOST_TASKS)
    return {**_OWN_JVM, **_LOCAL, **daemon, "spark.master": master or f"local[{tasks}]"}


def _local_jvm(*, long: bool) -> Any:
    """Starts Spark's JVM, which lives as long as this process, with its output redirected to a temporary file. Raises
    JavaError unless the java that Spark would use exists and is new enough, and SPARK_HOME is of PySpark's release."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    if shutil.which(java) is None:
        raise JavaError(f"no {java} found: Spark needs Java {OLDEST_JAVA} or newer (on PATH, or set JAVA_HOME)")
    if (version := java_version(java)) < OLDEST_JAVA:
        raise JavaError(f"{java} is version {version}: Spark needs Java {OLDEST_JAVA} or newer")
    cores = [core.name for core in Path(_find_spark_home(), "jars").glob("spark-core_*.jar")]
    release = ".".join(pyspark.__version__.split(".")[:2])
    if cores and not any(f"-{release}." in core for core in cores):
        raise JavaError(f"SPARK_HOME has {cores[0]}, PySpark is {pyspark.__version__}: unset it, or name its Spark")
    options = " ".join((_JAVA_OPTIONS, *([] if long else [_SHORT_JOB]), *mapped()))
    conf = SparkConf(loadDefaults=False).setAll([*_OWN_JVM.items(), ("spark.driver.extraJavaOptions", options)])
    # Of the JVM that only puts the command line together.
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", f"{_JAVA_OPTIONS} {_SHORT_JOB}")
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


# The core of quota-headroom, by which a job loads nearly all of its classes, over a few rows.
_WORKLOAD = """
import pyarrow as pa
from spark_jobs.clickhouse import queries
from spark_jobs.clickhouse.source import arrow_schema
from spark_jobs.session import plan_for_many_rows, session
from spark_jobs.transforms.verdicts import correlated

def rows(schema):
    arrow = arrow_schema(schema)
    texts = ["producer_byte_rate"] * 40
    numbers, none = [at * 60_000 for at in range(40)], [None] * 40
    made = lambda kind: texts if pa.types.is_string(kind) else none if pa.types.is_list(kind) else numbers
    batch = pa.RecordBatch.from_arrays([pa.array(made(field.type), field.type) for field in arrow], schema=arrow)
    return lambda _: iter([batch])

with session("class-archive") as spark:
    schemas = (
        queries.USAGE_SCHEMA, queries.TELEMETRY_SCHEMA, queries.INSTANCES_SCHEMA, queries.BYTE_REPORTS_SCHEMA,
        queries.TEAMS_SCHEMA, queries.OBSERVED_SCHEMA,
    )
    inputs = [spark.range(0, 1, 1, 1).mapInArrow(rows(schema), schema) for schema in schemas]
    for plans in ("interpreted", "compiled"):
        windows = correlated(*inputs).coalesce(2)
        windows.mapInArrow(lambda batches: (batch.select(["samples"]) for batch in batches), "samples long").collect()
        plan_for_many_rows(spark)
"""


def archive() -> Path:
    """Where the archive of this Java and these jars is, or would be."""
    jars = Path(_find_spark_home()) / "jars"
    java = os.environ.get("JAVA_HOME", "")
    identity = f"{jars} {jars.stat().st_mtime_ns} {java}"
    return Path(sys.prefix) / "share" / "headroom" / f"spark-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.jsa"


def mapped() -> list[str]:
    """The option with which a JVM maps the archive; none if there is no archive, or if it writes a new one."""
    path = archive()
    is_usable = path.is_file() and " " not in str(path) and _WRITES not in os.environ.get("SPARK_SUBMIT_OPTS", "")
    return [f"-XX:SharedArchiveFile={path}"] if is_usable else []


def main() -> int:
    path = archive()
    unfinished = path.with_suffix(f".{os.getpid()}")
    environment = {**os.environ, "SPARK_SUBMIT_OPTS": f"{_WRITES}={unfinished}"}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-P", "-c", _WORKLOAD]
        subprocess.run(command, env=environment, stderr=subprocess.PIPE, check=True, timeout=_ARCHIVE_S)
        unfinished.replace(path)  # in one step: others may be starting
    except (OSError, subprocess.SubprocessError) as exc:
        said = (getattr(exc, "stderr", None) or b"").decode(errors="replace").strip().splitlines()
        cause = (said[-1] if said else str(exc)).removeprefix(f"{__package__}.session.{JavaError.__name__}: ")
        sys.stderr.write(f"headroom: no class archive: {cause}\n")
        return 1
    sys.stdout.write(f"{path}: {path.stat().st_size >> 20} MiB\n")
    return 0


@contextmanager
def progress(job: str, context: SparkContext, console: Console | None = None) -> Iterator[None]:
    """Shows on stderr how many tasks of the active stages are complete, until the block ends."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    done = threading.Event()
    with console.status(f"{job}: planning") as status:

        def follow() -> None:
            tracker = context.statusTracker()
            while not done.wait(_PROGRESS_S):
                ids = tracker.getActiveStageIds()
                stages = [info for stage in ids if (info := tracker.getStageInfo(stage)) is not None]
                completed, total = sum(info.numCompletedTasks for info in stages), sum(info.numTasks for info in stages)
                names = ", ".join(f"stage {info.stageId}" for info in stages)
                status.update(f"{job}: {names}: {completed} of {total} tasks done" if stages else f"{job}: planning")

        thread = threading.Thread(target=follow, name=f"{job}-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def java_version(java: str) -> int:
    """Major version of a `java` executable (8 for the old `1.8.0_392`); 0 if it does not run or prints no version."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_JAVA_VERSION_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(match[1]) if match else 0


if __name__ == "__main__":
    sys.exit(main())
