"""Moves rows between ClickHouse and Spark, as Arrow batches over HTTP, by what each release of PySpark from 3.5 on has.

`read` and `stage` use `mapInArrow`: executors connect to ClickHouse directly and no rows pass through the driver. A
Python Data Source (PySpark 4.3) would do the same, but each of its reads and writes starts Python processes for
planning: about one CPU-second per source on top of the workers. Its column pruning and filter pushdown bring nothing
here, because our queries already name their columns and filters.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any, cast

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from exporters.clickhouse.client import ClickHouse, with_writer
from exporters.clickhouse.connection import Endpoint, tls_of
from exporters.clickhouse.errors import StoreError
from spark_jobs.clickhouse.queries import STAGING
from spark_jobs.session import parallelism

_TIMEOUT_S = 300.0
_PATIENCE_S = 5.0


class NothingToReadError(StoreError):
    """The requested range has no rows."""


def clickhouse_of(url: str, password: str = "") -> ClickHouse:
    """The server of `http(s)://user@host:8123/headroom`. For a URL without a user it is the managed server's writer, if
    its password file is readable: jobs also read as the writer, because the reader's limits are for interactive use.

    Raises ValueError for other URLs, and for URLs that contain a password; StoreError.
    """
    endpoint = with_writer(Endpoint.parse(url, password, tls_of(os.environ)))
    return ClickHouse((endpoint,), _TIMEOUT_S, patience_s=_PATIENCE_S, consistent=True)


BLOCK_ROWS = 25_000  # a worker takes some 250 MiB for a block of 70,000 windows

Batches = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def read(
    spark: SparkSession, clickhouse: ClickHouse, query: str, schema: StructType, slices: Sequence[Mapping[str, Any]]
) -> DataFrame:
    """The rows of `query` for each set of parameters in `slices`, one Spark task each. A task raises StoreError when
    ClickHouse fails the query."""

    def tables(number: int) -> Iterator[pa.Table]:
        for batch in clickhouse.batches(query, slices[number]):
            yield pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch

    return in_tasks(spark, len(slices), tables, schema)


def in_tasks(
    spark: SparkSession, count: int, tables: Callable[[int], Iterable[pa.Table]], schema: StructType
) -> DataFrame:
    """The rows of `schema` in the tables for each number below `count`, one Spark task each."""

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        arrow = arrow_schema(schema)
        for number in (int(number.as_py()) for numbers in batches for number in numbers.column(0)):
            for table in tables(number):
                yield from table.select(arrow.names).cast(arrow).to_batches()

    return spark.range(0, count, 1, max(count, 1)).mapInArrow(rows, schema)


def stage(rows: DataFrame, clickhouse: ClickHouse, run_id: str, finish: Batches) -> int:
    """Inserts the rows that `finish` makes of each partition, in blocks of about BLOCK_ROWS; returns their number.

    Deduplication tokens contain partition and block, and the rows of a partition must be sorted, by keys that are equal
    for no two of them: so a retried task counts once. A task raises StoreError when ClickHouse fails an insert."""

    def written(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        partition = context.partitionId() if context else 0
        for number, block in enumerate(_blocks(finish(batches))):
            clickhouse.insert(STAGING, block, token=f"{run_id}/{STAGING}/{partition}/{number}")
            yield _count(block.num_rows)

    few = rows.coalesce(parallelism(rows.sparkSession.sparkContext))
    return sum(row["written"] for row in few.mapInArrow(written, "written long").collect())


def _count(rows: int) -> pa.RecordBatch:
    """One row, `written`. To convert a Python list pyarrow imports pandas, which costs as much as a worker's start."""
    number = pa.py_buffer(rows.to_bytes(8, sys.byteorder))
    return pa.RecordBatch.from_arrays([pa.Array.from_buffers(pa.int64(), 1, [None, number])], ["written"])


def _blocks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Combines batches into blocks of at least BLOCK_ROWS rows, except the last."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(batch.num_rows for batch in waiting) >= BLOCK_ROWS:
            yield pa.Table.from_batches(waiting).unify_dictionaries()
            waiting = []
    if any(batch.num_rows for batch in waiting):
        yield pa.Table.from_batches(waiting).unify_dictionaries()


def arrow_schema(schema: StructType) -> pa.Schema:
    """Of batches that become rows of `schema`, in a session whose zone is UTC."""
    if "timezone" in signature(to_arrow_schema).parameters:  # from 4.3 on
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)


def collected(rows: DataFrame) -> pa.Table:
    """All rows, in the driver: DataFrame.toArrow, which PySpark has from 4.0 on, and what toPandas does before."""
    if hasattr(rows, "toArrow"):
        return rows.toArrow()
    batches = cast(Any, rows)._collect_as_arrow()
    return pa.Table.from_batches(batches, None if batches else arrow_schema(rows.schema))


@contextmanager
def source_errors() -> Iterator[None]:
    """Re-raises a Python worker's StoreError instead of the Spark exception that wraps it."""
    try:
        yield
    except (PySparkException, Py4JError) as exc:
        cause = re.search(r"\bStore\w*Error: (.+)", str(exc))
        if cause is None:
            raise
        raise StoreError(cause[1].strip()) from exc
