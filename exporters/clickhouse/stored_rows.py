"""Asks a table for rows that may have been written: of an insert that was not answered. Sans-I/O."""

from __future__ import annotations

import uuid
from typing import Any, NamedTuple

import pyarrow as pa

# What tells the rows of a table apart. The others count or replace: rows that come twice do little harm there.
_IDENTITIES = {
    "points": ("series_id", "ts"),
    "client_histograms": ("series_id", "ts"),
    "pushes": ("push_id", "received_at"),
}
_SAMPLE = 500


class SampleQuery(NamedTuple):
    """`sql` gives one number, `found`, which is `rows` if the table has all rows of the sample."""

    sql: str
    rows: int


def sample_query(table: str, rows: pa.Table) -> SampleQuery | None:
    """None if the rows of the table have no identity. The time bounds keep the query to few partitions."""
    columns = _IDENTITIES.get(table)
    if columns is None or rows.num_rows == 0:
        return None
    step = -(-rows.num_rows // _SAMPLE)
    sample = rows.select(columns).take(pa.array(range(0, rows.num_rows, step)))
    times = [_literal(time) for time in sample.column(1).to_pylist()]
    wanted = {f"({_literal(name)}, {time})" for name, time in zip(sample.column(0).to_pylist(), times, strict=True)}
    identity = ", ".join(columns)
    return SampleQuery(
        f"SELECT uniqExact({identity}) AS found FROM {table}"  # noqa: S608 numbers, times and UUIDs
        f" WHERE {columns[1]} BETWEEN {min(times)} AND {max(times)} AND ({identity}) IN ({', '.join(sorted(wanted))})",
        len(wanted),
    )


def _literal(value: Any) -> str:
    if isinstance(value, bytes):
        return f"'{uuid.UUID(bytes=value)}'"
    return str(value) if isinstance(value, int) else f"'{value:%Y-%m-%d %H:%M:%S}.{value.microsecond // 1000:03d}'"
