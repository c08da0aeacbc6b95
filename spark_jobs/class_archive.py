"""The class data archive of Spark's JVM (JEP 350): classes that one JVM has loaded are mapped by the next ones.

    python -m spark_jobs.class_archive

writes it for this installation, below its prefix (150 MB). Without it each job parses and verifies some 15,000 classes,
half of the CPU of a short job. A JVM ignores an archive of other jars or of another Java.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pyspark

_LIMIT_S = 600
# The core of quota-headroom, by which a job loads nearly all of its classes, over a few rows.
_WORKLOAD = """
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from spark_jobs.clickhouse import queries
from spark_jobs.session import plan_for_many_rows, session
from spark_jobs.time_range import TimeRange
from spark_jobs.transforms.thresholds import Thresholds
from spark_jobs.transforms.utilization import Inputs, utilization

def rows(schema):
    arrow = to_arrow_schema(schema, timezone="UTC")
    texts = ["producer_byte_rate"] * 40
    made = lambda kind: texts if pa.types.is_string(kind) else [at * 60_000 for at in range(40)]
    batch = pa.RecordBatch.from_arrays([pa.array(made(each.type), each.type) for each in arrow], schema=arrow)
    return lambda _: iter([batch])

with session("class-archive") as spark:
    schemas = (queries.USAGE_SCHEMA, queries.TELEMETRY_SCHEMA, queries.INSTANCES_SCHEMA)
    inputs = Inputs(*(spark.range(0, 1, 1, 1).mapInArrow(rows(schema), schema) for schema in schemas))
    for plans in ("interpreted", "compiled"):
        found = utilization(inputs, TimeRange(0, 2_400_000, 60), Thresholds()).coalesce(2)
        ordered = found.sortWithinPartitions("cluster", "window_start")
        ordered.mapInArrow(lambda batches: (batch.select(["samples"]) for batch in batches), "samples long").collect()
        plan_for_many_rows(spark)
"""


def archive() -> Path:
    """Where the archive of this Java and these jars is, or would be."""
    jars = Path(pyspark.__file__).parent / "jars"
    java = os.environ.get("JAVA_HOME", "")
    identity = f"{jars} {jars.stat().st_mtime_ns} {java}"
    return Path(sys.prefix) / "share" / "headroom" / f"spark-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.jsa"


def mapped() -> list[str]:
    """The option with which a JVM maps the archive; none if there is no archive."""
    path = archive()
    return [f"-XX:SharedArchiveFile={path}"] if path.is_file() and " " not in str(path) else []


def main() -> int:
    path = archive()
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    environment = {**os.environ, "SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit={unfinished}"}
    path.unlink(missing_ok=True)  # a JVM that maps an archive writes none
    subprocess.run([sys.executable, "-c", _WORKLOAD], env=environment, check=True, timeout=_LIMIT_S)
    unfinished.rename(path)  # in one step: others may be starting
    sys.stdout.write(f"{path}: {path.stat().st_size >> 20} MiB\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
