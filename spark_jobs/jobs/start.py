"""What every job that needs Spark from its first step on begins and ends with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from exporters.clickhouse.client import ClickHouse
from spark_jobs.clickhouse.runs import JobRun
from spark_jobs.clickhouse.source import clickhouse_of, source_errors
from spark_jobs.options import JobOptions
from spark_jobs.session import progress, session


@contextmanager
def started(name: str, options: JobOptions) -> Iterator[tuple[JobRun, SparkSession, ClickHouse]]:
    """The recorded run, a Spark session and the client of the store. Raises ValueError (url), JavaError, StoreError."""
    clickhouse = clickhouse_of(options.url, options.password)
    job_run = JobRun(clickhouse, name, options)
    with (
        job_run,
        source_errors(),
        session(name, options.master) as spark,
        progress(name, spark.sparkContext),
    ):
        yield job_run, spark, clickhouse
