"""A report: renders the rows of a job as table, JSON, HTML page or Parquet; and the report that is a table of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from exporters.printable import printable, shortened

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


Plots = Callable[[Sequence[Row]], Mapping[str, str]]  # title -> image, a URI


def rows_report(title: str, columns: pa.Schema, shown: Sequence[str], plots: Plots | None = None) -> Report:
    """A report whose table and page have the columns `shown`; JSON and Parquet have all columns."""

    def to_table(rows: Sequence[Row]) -> RenderableType:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
        for name in shown:
            table.add_column(name.replace("_", " "), overflow="fold")
        for row in rows:
            table.add_row(*(Text(printable(shortened(cell(row.get(name))))) for name in shown))
        return table

    def to_html(rows: Sequence[Row]) -> str:
        from jinja2 import Environment  # terminal tables need no templates

        template = (files("spark_jobs.reports") / "rows.html.j2").read_text(encoding="utf-8")
        page = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
        page.filters.update(cell=cell, shortened=shortened)
        return page.from_string(template).render(
            title=title, names=shown, rows=rows, plots=plots(rows) if plots else {}
        )

    return Report(columns, to_table, to_html)


def cell(value: Any) -> str:
    """Formats one value for display."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) < 1000 else f"{value:.0f}"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
