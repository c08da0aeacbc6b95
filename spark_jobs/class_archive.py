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
_WORKLOAD = """
from pyspark.sql import Window, functions as F
from spark_jobs.session import session
with session("class-archive") as spark:
    rows = spark.range(0, 100, 1, 2).withColumns({"k": F.col("id") % 7, "s": F.format_string("%d", "id")})
    lately = Window.partitionBy("k").orderBy("id").rangeBetween(-5, 0)
    summed = rows.select("id", "k", F.sum("id").over(lately).alias("n"))
    ranked = summed.mapInArrow(lambda batches: batches, "id long, k long, n long")
    counts = rows.groupBy("k").agg(F.collect_list(F.struct("id", "s")).alias("all"))
    ranked.join(counts, on="k", how="left").sortWithinPartitions("id").collect()
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
