"""The daemon of Spark's Python workers on this machine: it imports what each worker needs before it forks them.

    spark.python.daemon.module = spark_jobs.worker_daemon

A worker then starts with half of the CPU. numpy, pyarrow and pandas are left to the workers: they start threads when
they are imported, and a forked process has none of its parent's threads (see pyspark/daemon.py).
"""

import clickhouse_connect  # noqa: F401
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

if __name__ == "__main__":
    manager()
