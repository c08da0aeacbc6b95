"""The report that people and scripts read: a table, JSON, a page, Parquet. Rows are dicts with the names of COLUMNS."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from jinja2 import Environment
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from exporters.model import QuotaKey
from spark_jobs.levels import LEVELS

Row = dict[str, Any]

_TYPES: dict[str, pa.DataType] = {
    "cluster": pa.string(),
    "quota_key": pa.string(),
    "user": pa.string(),
    "client_id": pa.string(),
    "broker_id": pa.int32(),  # the client's worst one
    "limit": pa.float64(),  # null: no quota applies
    "usage": pa.float64(),  # the client's own mean rate there
    "utilization": pa.float64(),  # group_usage / limit
    "throttle_ms": pa.float64(),  # the longest throttle time of the window
    "level": pa.string(),
    "reason": pa.string(),
    "software_name": pa.string(),
    "software_version": pa.string(),
    "instances": pa.int32(),
    "matched_entity": pa.string(),
    "headroom": pa.float64(),  # limit - group_usage
    "group_usage": pa.float64(),  # of all clients that share the limit
    "shared_with": pa.int32(),  # how many others these are
    "usage_p95": pa.float64(),
    "usage_max": pa.float64(),
    "throttled_s": pa.float64(),
    "client_throttle_ms_max": pa.float64(),  # what the client itself says
    "eta_s": pa.float64(),
    "window_start": pa.timestamp("us", "UTC"),
    "window_s": pa.int32(),
}
COLUMNS = pa.schema(_TYPES)

_STYLES = {"ok": "green", "watch": "cyan", "warn": "yellow", "critical": "red", "throttled": "bold red"}


def worst_first(rows: Sequence[Row]) -> list[Row]:
    """By level, throttle time and utilisation; then by name, so that equal runs read equal."""
    names = ("cluster", "client_id", "user", "quota_key")
    by_name = sorted(rows, key=lambda row: tuple(row[name] for name in names))
    return sorted(by_name, key=_badness, reverse=True)


def _badness(row: Row) -> tuple[int, float, float]:
    return LEVELS.index(row["level"]), row["throttle_ms"], row["utilization"] or 0.0


def to_json(rows: Sequence[Row]) -> bytes:
    """A list of objects, with null for what is unknown; never NaN."""
    return orjson.dumps(rows, option=orjson.OPT_INDENT_2 | orjson.OPT_UTC_Z | orjson.OPT_APPEND_NEWLINE)


def to_parquet(rows: Sequence[Row]) -> bytes:
    """A file with the types of COLUMNS."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(list(rows), schema=COLUMNS), sink)
    return bytes(sink.getvalue())


def to_html(rows: Sequence[Row]) -> str:
    """One page that needs nothing else."""
    template = (files("spark_jobs") / "report.html.j2").read_text(encoding="utf-8")
    page = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    page.filters.update(rate=rate, duration=duration, percent=percent)
    counts = {name: sum(row["level"] == name for row in rows) for name in reversed(LEVELS)}
    return page.from_string(template).render(rows=rows, counts=counts)


def to_table(rows: Sequence[Row]) -> RenderableType:
    """For a terminal: a row per client, then the reasons of those that are not ok. Nothing is cut off. Client-made
    names are neither markup nor control sequences here."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("level", "client-id", "user", "quota", "used", "usage", "limit", "throttle", "broker"):
        is_number = name in ("used", "usage", "limit", "throttle", "broker")
        table.add_column(name, overflow="fold", justify="right" if is_number else "left")
    for row in rows:
        cells = (
            *(row["client_id"], row["user"], row["quota_key"], percent(row["utilization"])),
            *(rate(row["usage"], row["quota_key"]), rate(row["limit"], row["quota_key"])),
            *(duration(row["throttle_ms"]), str(row["broker_id"])),
        )
        table.add_row(_level(row), *(Text(_printable(cell)) for cell in cells))
    return Group(table, *(_why(row) for row in rows if row["level"] != LEVELS[0]))


def _level(row: Row) -> Text:
    return Text(row["level"], style=_STYLES[row["level"]])


def _why(row: Row) -> Text:
    return Text.assemble(_level(row), _printable(f" {row['client_id']}: {row['reason']}"))


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def write(rows: Sequence[Row], directory: Path) -> None:
    """Leaves headroom.json, report.html and headroom.parquet."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "headroom.json").write_bytes(to_json(rows))
    (directory / "report.html").write_text(to_html(rows), encoding="utf-8")
    (directory / "headroom.parquet").write_bytes(to_parquet(rows))


def rate(value: float | None, quota_key: str) -> str:
    """With the unit of its quota key; `-` for none."""
    if value is None:
        return "-"
    if quota_key == QuotaKey.REQUEST_PERCENTAGE:
        return f"{value:.1f} %"
    if quota_key == QuotaKey.CONTROLLER_MUTATION_RATE:
        return f"{value:.1f} mutations/s"
    for unit, size in (("MB/s", 1e6), ("kB/s", 1e3)):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value:.0f} B/s"


def duration(throttle_ms: float) -> str:
    """`-`, `350 ms`, `1.2 s`."""
    if throttle_ms <= 0:
        return "-"
    return f"{throttle_ms / 1000:.1f} s" if throttle_ms >= 1000 else f"{throttle_ms:.0f} ms"


def percent(utilization: float | None) -> str:
    """`85.0 %`; `-` where no quota applies."""
    return "-" if utilization is None else f"{utilization * 100:.1f} %"
