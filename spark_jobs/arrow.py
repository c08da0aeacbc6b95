"""Rows of Spark as Arrow tables, by what each release of PySpark from 3.5 on has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T

_TYPES: Mapping[type[T.DataType], pa.DataType] = {
    T.BooleanType: pa.bool_(),
    T.IntegerType: pa.int32(),
    T.LongType: pa.int64(),
    T.DoubleType: pa.float64(),
    T.StringType: pa.string(),
    T.TimestampType: pa.timestamp("us", "UTC"),  # of a session whose zone is UTC
}


def arrow_schema(schema: T.StructType) -> pa.Schema:
    """Of batches that become rows of `schema`. PySpark's own function takes other arguments in other releases."""
    return pa.schema([pa.field(field.name, _arrow_type(field.dataType), field.nullable) for field in schema])


def _arrow_type(kind: T.DataType) -> pa.DataType:
    if isinstance(kind, T.ArrayType):
        return pa.list_(pa.field("element", _arrow_type(kind.elementType), kind.containsNull))
    return _TYPES[type(kind)]


def collected(rows: DataFrame) -> pa.Table:
    """All rows, in the driver: DataFrame.toArrow, which PySpark has from 4.0 on, and what toPandas does before."""
    if hasattr(rows, "toArrow"):
        return rows.toArrow()
    batches = cast(Any, rows)._collect_as_arrow()
    return pa.Table.from_batches(batches, None if batches else arrow_schema(rows.schema))
