"""What a report is: how the rows of a job become a table, JSON, a page, Parquet."""

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
    """The forms of one job's report; the columns are its schema."""

    columns: pa.Schema
    to_table: Callable[[Sequence[Row]], RenderableType]
    to_html: Callable[[Sequence[Row]], str]

    def to_json(self, rows: Sequence[Row]) -> bytes:
        """A list of objects, with null for what is unknown; never NaN."""
        return orjson.dumps(rows, option=orjson.OPT_INDENT_2 | orjson.OPT_UTC_Z | orjson.OPT_APPEND_NEWLINE)

    def to_parquet(self, rows: Sequence[Row]) -> bytes:
        """A file with the types of `columns`."""
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(list(rows), schema=self.columns), sink)
        return bytes(sink.getvalue())
