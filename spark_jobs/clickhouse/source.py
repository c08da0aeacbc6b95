"""ClickHouse as a Spark data source, Arrow batches over HTTP in both directions: `read` and `write`.

Constraints (PySpark 4.3): option keys arrive lower-cased; a batch's schema must equal Spark's exactly, so it
is cast; there is no column pruning, so a query names its columns; filters are not pushed down (a reader that
implements pushFilters is refused unless a flag is set), so a query holds them. This runs in Python workers, which
reach ClickHouse over HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceReader, InputPartition
from pyspark.sql.datasource import WriterCommitMessage as CommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from spark_jobs.clickhouse.client import ClickHouse

BLOCK_ROWS = 100_000


def read(
    spark: SparkSession, clickhouse: ClickHouse, query: str, schema: StructType, slices: Sequence[Mapping[str, Any]]
) -> DataFrame:
    """What `query` yields for each set of parameters in `slices`, one Spark task each."""
    spark.dataSource.register(ClickHouseDataSource)
    reader = spark.read.format(ClickHouseDataSource.name()).schema(schema)
    return reader.options(**_address(clickhouse), query=query, slices=json.dumps(slices)).load()


def write(rows: DataFrame, clickhouse: ClickHouse, table: str, *, token: str) -> None:
    """Each partition in blocks of about BLOCK_ROWS. Deduplication tokens name partition and block, so a retried task
    counts once: the order of rows within a partition has to be the same again."""
    rows.sparkSession.dataSource.register(ClickHouseDataSource)
    writer = rows.write.format(ClickHouseDataSource.name()).mode("append")
    writer.options(**_address(clickhouse), table=table, token=token).save()


def _address(clickhouse: ClickHouse) -> dict[str, str]:
    # Spark redacts both of these names where it shows options.
    return {"url": clickhouse.url, "password": clickhouse.password}


class ClickHouseDataSource(DataSource):
    """Options: url, password; to read also query and slices (JSON), to write table and token."""

    @classmethod
    def name(cls) -> str:
        return "clickhouse"

    def reader(self, schema: StructType) -> ClickHouseReader:
        return ClickHouseReader(self._clickhouse(), self.options["query"], json.loads(self.options["slices"]), schema)

    def writer(self, schema: StructType, overwrite: bool) -> ClickHouseWriter:
        return ClickHouseWriter(self._clickhouse(), self.options["table"], self.options["token"])

    def _clickhouse(self) -> ClickHouse:
        return ClickHouse(self.options["url"], self.options["password"])


class ClickHouseReader(DataSourceReader):
    """One query, once per slice."""

    def __init__(
        self, clickhouse: ClickHouse, query: str, slices: Sequence[Mapping[str, Any]], schema: StructType
    ) -> None:
        self._clickhouse = clickhouse
        self._query = query
        self._slices = slices
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(parameters) for parameters in self._slices]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raises SourceError when ClickHouse does not answer the query."""
        schema = to_arrow_schema(self._schema, timezone="UTC")
        for batch in self._clickhouse.batches(self._query, partition.value):
            table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
            yield from table.select(schema.names).cast(schema).to_batches()


class ClickHouseWriter(DataSourceArrowWriter):
    """The rows of a partition in blocks."""

    def __init__(self, clickhouse: ClickHouse, table: str, token: str) -> None:
        self._clickhouse = clickhouse
        self._table = table
        self._token = token

    # PySpark's own stub of DataSourceArrowWriter disagrees with its base in the same way.
    def write(self, iterator: Iterator[pa.RecordBatch]) -> CommitMessage:  # type: ignore[override]
        """Raises SourceError when ClickHouse does not take the rows."""
        context = TaskContext.get()
        partition = context.partitionId() if context else 0
        for number, block in enumerate(_blocks(iterator)):
            self._clickhouse.insert(self._table, storable(block), token=f"{self._token}/{partition}/{number}")
        return CommitMessage()


def _blocks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches put together to at least BLOCK_ROWS, as far as rows remain."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(each.num_rows for each in waiting) >= BLOCK_ROWS:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if any(batch.num_rows for batch in waiting):
        yield pa.Table.from_batches(waiting)


def storable(rows: pa.Table) -> pa.Table:
    """Spark's types as Store.insert takes them: a DateTime has whole seconds, a UUID is 16 bytes."""
    return rows.cast(pa.schema([(field.name, _stored_type(field.type)) for field in rows.schema]))


def _stored_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("s", "UTC")
    return pa.binary(16) if pa.types.is_binary(kind) else kind
