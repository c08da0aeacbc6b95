"""A Spark driver on a stand-alone cluster that runs quota-headroom again and again: the driver that chaos kills.

    python -m tests.chaos.job_driver MASTER PACKAGES URL FROM_MS TO_MS

For each line on stdin, the name of a cluster of rows, it runs the job over these rows and prints `succeeded` or
`failed`. It ends with its stdin.
"""

from __future__ import annotations

import sys
import traceback

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from exporters.clickhouse.errors import StoreError
from spark_jobs.jobs import quota_headroom
from spark_jobs.options import HeadroomOptions
from spark_jobs.time_range import TimeRange
from tests.kit.spark_cluster import EXECUTORS

# As a local session has them: compiling plans takes a new driver longer than these few rows.
_CHEAP = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def main(master: str, packages: str, url: str, from_ms: int, to_ms: int) -> None:
    builder = SparkSession.builder.master(master).config("spark.submit.pyFiles", packages)
    for name, value in {**EXECUTORS, **_CHEAP, "spark.sql.session.timeZone": "UTC"}.items():
        builder = builder.config(name, value)
    builder.getOrCreate()
    for line in sys.stdin:
        options = HeadroomOptions(url, TimeRange(from_ms, to_ms, 60), cluster=line.strip())
        print(_run(options), flush=True)


def _run(options: HeadroomOptions) -> str:
    try:
        quota_headroom.run(options)
    except (StoreError, PySparkException, Py4JError, OSError):  # what the death of an executor or server causes
        traceback.print_exc()
        return "failed"
    return "succeeded"


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
