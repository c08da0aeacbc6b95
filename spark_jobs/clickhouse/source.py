"""Transfers rows between ClickHouse and Spark as Arrow batches over HTTP: `read` and `stage`.

Both use `mapInArrow`: executors connect to ClickHouse directly and no rows pass through the driver. A Python Data
Source (PySpark 4.3) would do the same, but each of its reads and writes starts Python processes for planning: about one
CPU-second per source on top of the workers. Its column pruning and filter pushdown bring nothing here, because our
queries already name their columns and filters.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from exporters.clickhouse.client import ClickHouse
from exporters.clickhouse.errors import StoreError
from spark_jobs.clickhouse.publication import Run
from spark_jobs.clickhouse.slices import is_divided

BLOCK_ROWS = 25_000  # a worker takes some 250 MiB for a block of 70,000 rows of quota_utilization

Batches = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def read(
    spark: SparkSession, clickhouse: ClickHouse, query: str, schema: StructType, slices: Sequence[Mapping[str, Any]]
) -> DataFrame:
    """The rows of `query` for each set of parameters in `slices`, one Spark task each. A task raises StoreError when
    ClickHouse fails the query."""
    numbers = spark.range(0, len(slices), 1, max(len(slices), 1))  # one partition per slice number
    return numbers.mapInArrow(_reader(clickhouse, query, schema, slices), schema)


def read_slices(
    spark: SparkSession,
    clickhouse: ClickHouse,
    query: Callable[..., str],
    schema: StructType,
    slices: Iterable[Mapping[str, Any]],
) -> DataFrame:
    """`read` of slices of which some have some of the clients only: `query` takes `divided` and returns the SELECT."""
    kinds: dict[bool, list[Mapping[str, Any]]] = {}
    for each in slices:
        kinds.setdefault(is_divided(each), []).append(each)
    frames = (read(spark, clickhouse, query(divided=divided), schema, alike) for divided, alike in kinds.items())
    return reduce(DataFrame.unionAll, frames)


def _reader(clickhouse: ClickHouse, query: str, schema: StructType, slices: Sequence[Mapping[str, Any]]) -> Batches:
    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        arrow = to_arrow_schema(schema, timezone="UTC")
        for number in (number for numbers in batches for number in numbers.column(0)):
            for batch in clickhouse.batches(query, slices[int(number.as_py())]):
                table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
                yield from table.select(arrow.names).cast(arrow).to_batches()

    return rows


def stage(rows: DataFrame, clickhouse: ClickHouse, table: str, run: Run) -> int:
    """Inserts the rows of a run, each partition in blocks of about BLOCK_ROWS; returns their number.

    Deduplication tokens contain partition and block, and rows are sorted within a partition, so a retried task counts
    once. A task raises StoreError when ClickHouse fails an insert."""
    cores = max(rows.sparkSession.sparkContext.defaultParallelism, 1)
    few = rows.withColumn("run", F.lit(str(run.id))).coalesce(cores)
    order = ("window_start", "client_id", "cluster", "quota_key", "user", "from_ms")
    in_order = few.sortWithinPartitions(*(name for name in order if name in rows.columns))
    written = in_order.mapInArrow(_writer(clickhouse, table, f"{run.id}/{table}"), "written long").collect()
    return sum(row["written"] for row in written)


def _writer(clickhouse: ClickHouse, table: str, token: str) -> Batches:
    def written(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        partition = context.partitionId() if context else 0
        for number, block in enumerate(_blocks(batches)):
            clickhouse.insert(table, storable(block), token=f"{token}/{partition}/{number}")
            yield _count(block.num_rows)

    return written


def _count(rows: int) -> pa.RecordBatch:
    """One row, `written`. To convert a Python list pyarrow imports pandas, which costs as much as a worker's start."""
    number = pa.py_buffer(rows.to_bytes(8, sys.byteorder))
    return pa.RecordBatch.from_arrays([pa.Array.from_buffers(pa.int64(), 1, [None, number])], ["written"])


def _blocks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Combines batches into blocks of at least BLOCK_ROWS rows, except the last."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(each.num_rows for each in waiting) >= BLOCK_ROWS:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if any(batch.num_rows for batch in waiting):
        yield pa.Table.from_batches(waiting)


def storable(rows: pa.Table) -> pa.Table:
    """Converts Spark's types to those of Store.insert: DateTime in whole seconds, UUID as 16 bytes."""
    return rows.cast(pa.schema([(field.name, _stored_type(field.type)) for field in rows.schema]))


def _stored_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("s", "UTC")
    return pa.binary(16) if pa.types.is_binary(kind) else kind


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
