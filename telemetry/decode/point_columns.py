"""Builds numpy columns of the data points of many pushes, from decoded points and template matches. Sans-I/O.

Loops over points run in numpy. otlp.py defines the columns; both ways give identical results.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from telemetry.decode.otlp import MAX_FUTURE_MS, MAX_PAST_MS, Points
from telemetry.decode.templates import Match, Template

_NS_PER_MS = 1_000_000
_EXACT_DOUBLE = 1 << 53
_MAX_UINT32 = (1 << 32) - 1
_ABSENT = bytes(8)  # appended to each payload, where the offset ABSENT (-1) reads it

# Receive times for which the bounds of timestamps fit unsigned 64-bit nanoseconds.
GATHERABLE_MS = range(MAX_PAST_MS, 1 << 43)

Numbers = npt.NDArray[Any]


class PointColumns(NamedTuple):
    """One element per point. `push` and `metric` are indexes of the push and the metric name."""

    push: Numbers
    metric: Numbers
    ts_ms: Numbers
    series_id: Numbers
    value: Numbers
    int_value: Numbers
    has_int_value: Numbers
    flags: Numbers
    interval_ms: Numbers


_TYPES = PointColumns(np.int32, np.int32, np.int64, np.uint64, np.float64, np.int64, np.bool_, np.uint8, np.uint32)  # type: ignore[arg-type] # the types of the columns


class Names:
    """Strings, numbered in order of first use."""

    def __init__(self) -> None:
        self._numbers: defaultdict[str, int] = defaultdict(lambda: len(self._numbers))

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def numbers(self, names: Iterable[str]) -> Numbers:
        """The number of each name; new names get the next number."""
        return np.array([self._numbers[name] for name in names], np.int32)

    def ranks(self) -> Numbers:
        """The alphabetical rank of each name, by number."""
        ranks = np.empty(len(self._numbers), np.int64)
        ranks[[number for _, number in sorted(self._numbers.items())]] = np.arange(len(ranks))
        return ranks


def joined(parts: Iterable[PointColumns]) -> PointColumns:
    """The points of all parts."""
    return PointColumns(*map(np.concatenate, zip(_NONE, *parts, strict=True)))


def reordered(columns: PointColumns, order: Numbers) -> PointColumns:
    """The points with these indexes."""
    return PointColumns(*(column[order] if column.any() else column for column in columns))  # zeros have no order


def listed(pushes: Sequence[int], points: Sequence[Points], names: Names) -> PointColumns:
    """Columns of points decoded one by one. `pushes`: the number of the push of each element of `points`."""

    def column(name: str) -> Numbers:
        return np.fromiter(chain.from_iterable(getattr(each, name) for each in points), getattr(_TYPES, name))

    exact = list(chain.from_iterable(each.int_value for each in points))
    return PointColumns(
        push=np.repeat(np.array(pushes, _TYPES.push), [len(each.value) for each in points]),
        metric=names.numbers(chain.from_iterable(each.metric for each in points)),
        ts_ms=column("ts_ms"),
        series_id=column("series_id"),
        value=column("value"),
        int_value=np.array([value or 0 for value in exact], _TYPES.int_value),
        has_int_value=np.array([value is not None for value in exact], _TYPES.has_int_value),
        flags=column("flags"),
        interval_ms=column("interval_ms"),
    )


def gathered(
    template: Template, pushes: Sequence[int], matches: Sequence[Match], received_ms: Numbers, names: Names
) -> tuple[PointColumns, int]:
    """Columns of payloads of one template, and how many timestamps were clamped.

    `pushes`: the number of the push of each match; `received_ms`: its receive time, in GATHERABLE_MS.
    """
    rows = _rows([match.payload for match in matches])
    received = received_ms[:, None].astype(np.int64)
    ns, start_ns = rows[:, template.time_at], rows[:, template.start_at]
    ts_ms, in_bounds = _timestamps(ns, received)
    value, int_value, has_int_value = _values(rows, template)
    columns = (
        np.repeat(np.array(pushes, _TYPES.push), len(template)),
        np.tile(names.numbers(template.names), len(matches)),
        ts_ms,
        np.concatenate([match.series_ids for match in matches]),
        value,
        int_value,
        has_int_value,
        np.tile(template.flags, len(matches)),
        _intervals(start_ns, ns),
    )
    return PointColumns(*(column.ravel() for column in columns)), int(in_bounds.size - in_bounds.sum())


def _rows(payloads: Sequence[bytes]) -> Numbers:
    """Payloads of equal length, one per row: element n is the fixed64 at byte offset n."""
    length = len(payloads[0])
    buffer = b"".join(chain.from_iterable((payload, _ABSENT) for payload in payloads))
    return np.ndarray((len(payloads), length + 1), "<u8", buffer, strides=(length + len(_ABSENT), 1))


def _timestamps(ns: Numbers, received_ms: Numbers) -> tuple[Numbers, Numbers]:
    earliest_ns = ((received_ms - MAX_PAST_MS) * _NS_PER_MS).astype(np.uint64)
    latest_ns = ((received_ms + MAX_FUTURE_MS) * _NS_PER_MS).astype(np.uint64)
    in_bounds = (earliest_ns <= ns) & (ns <= latest_ns)
    return np.where(in_bounds, (ns // _NS_PER_MS).astype(np.int64), received_ms), in_bounds


def _intervals(start_ns: Numbers, ns: Numbers) -> Numbers:
    given = (start_ns > 0) & (start_ns <= ns)
    return np.where(given, np.minimum((ns - start_ns) // _NS_PER_MS, _MAX_UINT32), 0).astype(np.uint32)


def _values(rows: Numbers, template: Template) -> tuple[Numbers, Numbers, Numbers]:
    """The columns value, int_value and has_int_value."""
    value = rows[:, template.double_at].view(np.float64)
    value[:, ~template.has_value] = np.nan
    int_value = np.zeros(value.shape, np.int64)
    has_int_value = np.zeros(value.shape, np.bool_)
    ints = template.int_columns
    if len(ints):
        exact = rows[:, template.int_at[ints]].view(np.int64)
        value[:, ints] = exact
        large = (exact > _EXACT_DOUBLE) | (exact < -_EXACT_DOUBLE)
        has_int_value[:, ints] = large
        int_value[:, ints] = np.where(large, exact, 0)
    return value, int_value, has_int_value


_NONE = listed([], [], Names())
