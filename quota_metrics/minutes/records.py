"""The SELECTs of this package, each an .sql file, and their results as values."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


@cache
def statement(name: str) -> str:
    """The text of the file sql/`name`.sql."""
    return (files("quota_metrics.minutes") / "sql" / f"{name}.sql").read_text(encoding="utf-8")


@contextmanager
def paused_collector() -> Iterator[None]:
    """Makes many values without the garbage collector. They refer to each other in no circle, and its visits to all of
    them would cost more than to make them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def records(table: pa.Table) -> list[tuple[Any, ...]]:
    """The rows of a table, each with the columns in order."""
    return list(zip(*(_values(column) for column in table.columns), strict=True))


def _values(column: Any) -> list[Any]:
    """The values of a column (pyarrow.ChunkedArray). Of a dictionary each one is made once."""
    import pyarrow as pa

    if not pa.types.is_dictionary(column.type):
        return list(column.to_pylist())
    rows: list[Any] = []
    for chunk in column.chunks:
        distinct = chunk.dictionary.to_pylist()
        rows += [None if index is None else distinct[index] for index in chunk.indices.to_pylist()]
    return rows
