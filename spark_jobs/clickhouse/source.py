"""Transfers rows between ClickHouse and Spark as Arrow batches over HTTP: `read` and `write`.

Both use `mapInArrow`: executors connect to ClickHouse directly and no rows pass through the driver. A Python Data
Source (PySpark 4.3) would do the same, but each of its reads and writes starts Python processes for planning: about one
CPU-second per source on top of the workers. Its column pruning and filter pushdown bring nothing here, because our
queries already name their columns and filters.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from spark_jobs.clickhouse.client import ClickHouse
from spark_jobs.clickhouse.divisions import is_divided

BLOCK_ROWS = 25_000  # a worker takes some 250 MiB for a block of 70,000 rows of quota_utilization

Batches = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def read(
    spark: SparkSession, clickhouse: ClickHouse, query: str, schema: StructType, slices: Sequence[Mapping[str, Any]]
) -> DataFrame:
    """The rows of `query` for each set of parameters in `slices`, one Spark task each. A task raises SourceError when
    ClickHouse fails the query."""
    numbers = spark.range(0, len(slices), 1, max(len(slices), 1))  # one partition per slice number
    return numbers.mapInArrow(_reader(clickhouse, query, schema, slices), schema)


def read_divided(
    spark: SparkSession,
    clickhouse: ClickHouse,
    query: Callable[..., str],
    schema: StructType,
    slices: Iterable[Mapping[str, Any]],
) -> DataFrame:
    """`read` of slices of which some are divided by clients: `query` takes `divided` and returns the SELECT."""
    of: dict[bool, list[Mapping[str, Any]]] = {}
    for piece in slices:
        of.setdefault(is_divided(piece), []).append(piece)
    frames = (read(spark, clickhouse, query(divided=divided), schema, pieces) for divided, pieces in of.items())
    return reduce(DataFrame.unionAll, frames)


def _reader(clickhouse: ClickHouse, query: str, schema: StructType, slices: Sequence[Mapping[str, Any]]) -> Batches:
    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        arrow = to_arrow_schema(schema, timezone="UTC")
        for number in (number for batch in batches for number in batch.column(0)):
            for found in clickhouse.batches(query, slices[int(number.as_py())]):
                table = pa.Table.from_batches([found]) if isinstance(found, pa.RecordBatch) else found
                yield from table.select(arrow.names).cast(arrow).to_batches()

    return rows


def write(rows: DataFrame, clickhouse: ClickHouse, table: str, *, token: str) -> int:
    """Inserts each partition in blocks of about BLOCK_ROWS; returns the number of rows. Deduplication tokens contain
    partition and block, so a retried task counts once, provided that the order of rows within a partition is
    deterministic. A task raises SourceError when ClickHouse fails an insert."""
    written = rows.mapInArrow(_writer(clickhouse, table, token), "written long").collect()
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
