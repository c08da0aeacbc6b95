"""A report: renders the rows of a job as table, JSON, HTML page or Parquet; and the report that is a table of rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from rich.text import Text

from exporters.printable import json_text, shortened
from exporters.text_table import Layout, table_lines
from quota_metrics.amounts import bytes_text, exact_share_text, rate_text, share_text

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Report:
    """The renderers of one job's report; `columns` is its schema."""

    columns: pa.Schema
    to_table: Callable[[Sequence[Row], int | None], list[Text]]  # lines; the width of the terminal, None for any
    to_html: Callable[[Sequence[Row]], str]
    to_yaml: Callable[[Sequence[Row]], str] | None = None  # of a report that is a file of quotas

    def to_json(self, rows: Sequence[Row]) -> bytes:
        """A list of objects; unknown values are null, never NaN."""
        return json_text(rows, orjson.OPT_INDENT_2 | orjson.OPT_UTC_Z | orjson.OPT_APPEND_NEWLINE).encode()

    def to_parquet(self, rows: Sequence[Row]) -> bytes:
        """Writes a file with the types of `columns`."""
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(list(rows), schema=self.columns), sink)
        return bytes(sink.getvalue())


_NAMES = ("user", "client id", "cluster")
_SENTENCES = ("reason", "known issue", "replay")
_COMMANDS = ("command",)
_SHARES = ("utilization", "confidence", "within_", "growth_", "throttled_before")  # how their names begin
_RATES = ("limit", "suggested_limit", "demand_low", "demand_high")

Plots = Callable[[Sequence[Row]], Mapping[str, str]]  # title -> image, a URI


def rows_report(
    columns: pa.Schema,
    title: str,
    shown: Sequence[str],
    *,
    empty: str,
    leave: Sequence[str] = (),
    plots: Plots | None = None,
    derived: Mapping[str, Callable[[Row], str]] = MappingProxyType({}),
) -> Report:
    """A report whose table and page have some columns; JSON and Parquet have all. `shown`: columns, and names of
    `derived`, which are texts by the row. `empty`: why there may be no row. `leave`: columns that a narrow terminal
    does without, the first one first. `plots`: images of the page."""
    headings = [name.replace("_", " ") for name in shown]
    kinds = {name: columns.field(name).type for name in shown if name not in derived}
    numbers = [name for name, kind in kinds.items() if pa.types.is_integer(kind) or pa.types.is_floating(kind)]
    whole = [name for name in shown if name.replace("_", " ") in (*_SENTENCES, *_COMMANDS)]  # never shortened
    of_numbers, leave = ([name.replace("_", " ") for name in names] for names in (numbers, leave))
    layout = Layout(of_numbers, _NAMES, leave, _SENTENCES, _COMMANDS)

    def full(row: Row) -> Row:
        return {**row, **{name: text(row) for name, text in derived.items()}}

    def to_table(rows: Sequence[Row], width: int | None) -> list[Text]:
        if not rows:
            return [Text(title), Text(empty)]
        cells = [
            [cell(row, name) if name in whole else shortened(cell(row, name)) for name in shown]
            for row in map(full, rows)
        ]
        return [Text(title), *(Text(line.text) for line in table_lines(headings, cells, width, layout))]

    def to_html(rows: Sequence[Row]) -> str:
        return page(
            "rows.html.j2",
            {"cell": cell, "shortened": shortened},
            title=title,
            names=[name for name in shown if name not in whole],
            below=whole,
            numbers=numbers,
            times=[field.name for field in columns if pa.types.is_timestamp(field.type)],
            rows=[*map(full, rows)],
            empty=empty,
            plots=plots(rows) if plots else {},
        )

    return Report(columns, to_table, to_html)


def page(template: str, filters: Mapping[str, Callable[..., object]], **shown: Any) -> str:
    """What a template of this directory makes of its variables."""
    from jinja2 import Environment  # terminal tables need no templates

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(filters)
    return environment.from_string((files("spark_jobs.reports") / template).read_text(encoding="utf-8")).render(shown)


def cell(row: Row, name: str) -> str:
    """Formats one value for display; a rate has the unit of the row's quota."""
    value = row.get(name)
    if value is None:
        return "-"
    if isinstance(value, float):
        if name in _RATES and "quota_key" in row:
            return rate_text(value, row["quota_key"])
        if name.endswith("_bytes_per_s"):
            return f"{bytes_text(value)}/s"
        if name.startswith("share") or name.endswith("share"):
            return exact_share_text(value)
        if name.startswith(_SHARES):
            return share_text(value)
        return f"{value:.3f}" if abs(value) < 1000 else f"{value:.0f}"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M} UTC"
    return str(value) or "-"
