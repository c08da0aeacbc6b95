"""Columns of Arrow as numpy arrays: names as integer codes, minutes in the order of their windows."""

import itertools
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]
Names: TypeAlias = Any  # an Array of different texts in the order of their bytes, '' first; a code is a position in it

_MOST_CODES = 2**62


def encoded(*columns: Any) -> tuple[Names, list[Ints]]:
    """The codes of each column, and their names in common."""
    arrays: list[Any] = [pa.array([""], pa.string())]
    for column in columns:
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        arrays.extend(chunk.cast(pa.string()) for chunk in chunks)
    joined = pa.chunked_array(arrays, pa.string()).combine_chunks().dictionary_encode()
    order = pc.sort_indices(joined.dictionary)
    rank = np.empty(len(order), np.int64)
    rank[order.to_numpy()] = np.arange(len(order))
    codes = rank[joined.indices.to_numpy()]
    ends = np.cumsum([1, *(len(column) for column in columns)])
    return joined.dictionary.take(order), [codes[start:end] for start, end in itertools.pairwise(ends)]


def numbers(table: pa.Table, name: str, kind: Any) -> Any:
    """A column without nulls as an array of numpy."""
    return table.column(name).to_numpy().astype(kind, copy=False)


def seconds_since_epoch(table: pa.Table, name: str) -> Ints:
    """A column of ClickHouse's type DateTime: Arrow has it as a number or as a timestamp."""
    column = table.column(name)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("s", column.type.tz))
    return np.asarray(column.cast(pa.int64()).to_numpy(), np.int64)


def lists(column: Any, kind: Any) -> tuple[Any, Ints]:
    """The values of all lists in a row, and the length of each."""
    values = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in column.chunks]
    lengths = pc.list_value_length(column).to_numpy().astype(np.int64)
    if len(values) == 1:
        return values[0].astype(kind, copy=False), lengths
    return np.concatenate([np.empty(0, kind), *values]).astype(kind, copy=False), lengths


def joined_codes(columns: Sequence[Ints]) -> Ints:
    """One number for each row, equal for equal rows, in the order of the columns. Codes are not negative."""
    joined, size = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        most = int(column.max(initial=0)) + 1
        if size * most >= _MOST_CODES:
            joined = np.unique(joined, return_inverse=True)[1].astype(np.int64)
            size = int(joined.max(initial=0)) + 1
        joined = joined * most + column
        size *= most
    return joined


def starts_of(ordered: npt.NDArray[Any]) -> Ints:
    """Where each run of equal numbers begins."""
    if not len(ordered):
        return np.empty(0, np.int64)
    return np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))


def per_run(operation: np.ufunc, values: Any, starts: Ints) -> Any:
    """`operation` over each run of rows."""
    return values if len(starts) == len(values) else operation.reduceat(values, starts, axis=0)


def run_of_row(starts: Ints, rows: int) -> Ints:
    """The number of the run of each row."""
    return np.repeat(np.arange(len(starts)), np.diff(starts, append=rows))
