"""The type of a report: renders the rows of a job as table, JSON, HTML page or Parquet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import RenderableType

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Report:
    """The renderers of one job's report; `columns` is its schema."""

    columns: pa.Schema
    to_table: Callable[[Sequence[Row]], RenderableType]
    to_html: Callable[[Sequence[Row]], str]

    def to_json(self, rows: Sequence[Row]) -> bytes:
        """A list of objects; unknown values are null, never NaN."""
        return orjson.dumps(rows, option=orjson.OPT_INDENT_2 | orjson.OPT_UTC_Z | orjson.OPT_APPEND_NEWLINE)

    def to_parquet(self, rows: Sequence[Row]) -> bytes:
        """Writes a file with the types of `columns`."""
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(list(rows), schema=self.columns), sink)
        return bytes(sink.getvalue())
