"""Templates of known payload structures, which make parsing unnecessary. Sans-I/O.

A client pushes the same metrics repeatedly; only OTLP's fixed64 fields change: start, time and value. A template stores
their offsets. A payload that equals it in all other bytes is decoded by gathering columns (`gathered`), in a
twentieth of the time of otlp.decode and with the same rows.

To find the offsets, a payload is serialized again with known random numbers in those fields, which are then searched
for. This works for payloads that protobuf serializes to the same bytes as the client did. Others, payloads with
histograms and very large ones are decoded by otlp.decode each time.

The columns of all points of a batch are numpy arrays (PointColumns), of payloads with a template (`gathered`) and of
those decoded one by one (`listed`), with identical results.
"""

from __future__ import annotations

import struct
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from telemetry.decode.lenient import METRICS
from telemetry.decode.otlp import MAX_FUTURE_MS, MAX_PAST_MS, NO_RECORDED_VALUE, Decoded, Points
from telemetry.decode.series import Series, series_id_of, series_key, text_bytes

ABSENT = -1  # offset of a field that is missing

_MAX_PAYLOAD_BYTES = 1 << 20
_MAX_TRIES = 8  # templates of the right length that are compared with a payload of a client not seen before
_ENTRY_BYTES = 600  # what an entry costs beside its arrays
_SERIES_BYTES = 1000  # what a described series costs beside its texts
_DRAWN = 0x40 << 56  # the highest byte: it makes them ordinary doubles and positive integers

Ids = npt.NDArray[np.uint64]


class Template:
    """The constant part of all payloads of one structure. Arrays have one element per data point."""

    def __init__(self, payload: bytes, decoded: Decoded, places: Sequence[_Places]) -> None:
        points = decoded.points
        self.names = tuple(map(sys.intern, points.metric))
        self.has_replaced_texts = decoded.replaced_texts > 0
        self.flags = np.array(points.flags, np.uint8)
        self.has_value = (self.flags & NO_RECORDED_VALUE) == 0
        self.start_at, self.time_at, self.double_at, self.int_at = np.array(places, np.int64).reshape(-1, 4).T
        self.int_columns = np.flatnonzero(self.has_value & (self.int_at != ABSENT))
        self._mask = np.full(len(payload), 0xFF, np.uint8)
        for at in (self.start_at, self.time_at, self.double_at, self.int_at):
            self._mask[(at[at != ABSENT][:, None] + np.arange(8)).ravel()] = 0
        self._constant = self._masked(payload)
        self.nbytes = 2 * len(payload) + 50 * len(places) + sum(map(sys.getsizeof, set(self.names)))  # approximate
        self.users = 0  # entries that hold it
        self.described: Described | None = None
        self.is_describable = True  # False after an attempt that failed, as it would for every payload

    def __len__(self) -> int:
        return len(self.names)

    def matches(self, payload: bytes) -> bool:
        """Whether the payload differs from the template only in the numbers."""
        return len(payload) == len(self._mask) and self._masked(payload) == self._constant

    def _masked(self, payload: bytes) -> bytes:
        return (np.frombuffer(payload, np.uint8) & self._mask).tobytes()


class Described:
    """The series of a template without their owner: no payload of another client needs to be parsed any more."""

    def __init__(self, decoded: Decoded) -> None:
        """`decoded` describes all of its series."""
        numbers = {id_: n for n, id_ in enumerate(decoded.series)}
        self._series = tuple(decoded.series.values())
        self._keys = tuple(map(series_key, self._series))
        self._of_point = np.array([numbers[id_] for id_ in decoded.points.series_id], np.intp)
        self.text_bytes = sum(text_bytes(series.attributes) + text_bytes(series.resource) for series in self._series)
        self.nbytes = _SERIES_BYTES * len(self._series) + sum(map(len, self._keys)) + 2 * self.text_bytes

    def of(self, client: bytes, known_ids: frozenset[int]) -> tuple[Ids, dict[int, Series]]:
        """The series id of each point of a client (`series.identity`), and those of its series that are new."""
        ids = [series_id_of(client, key) for key in self._keys]
        new = dict(zip(ids, self._series, strict=True))
        if known_ids:
            new = {id_: series for id_, series in new.items() if id_ not in known_ids}
        return np.array(ids, np.uint64)[self._of_point], new


class TemplateMatch(NamedTuple):
    """A payload that matches a template."""

    template: Template
    payload: bytes
    series_ids: Ids


class Sent:
    """The template of a client's payload and the ids of the series in it."""

    def __init__(self, template: Template, series_ids: Ids) -> None:
        self.template = template
        self.series_ids = series_ids
        self._described: Ids | None = None

    def is_described(self, known_ids: Ids) -> bool:
        """Whether all series are known. The result is cached while `known_ids` is the same array."""
        if self._described is not known_ids:
            if not np.array_equal(self.series_ids, known_ids) and not np.isin(self.series_ids, known_ids).all():
                return False
            self._described = known_ids
        return True


class Templates:
    """For each client and payload length the template and series ids of its last push.

    Bounded to about `max_bytes`; evicts the least recently used first, and templates that no client uses any more.
    """

    def __init__(self, max_bytes: int) -> None:
        self.nbytes = 0
        self._max_bytes = max_bytes
        self._sent: OrderedDict[tuple[bytes, int], Sent] = OrderedDict()
        self._by_length: dict[int, list[Template]] = defaultdict(list)

    def __len__(self) -> int:
        return sum(map(len, self._by_length.values()))

    def find(self, client: bytes, payload: bytes) -> Sent | None:
        """The entry of the client (as series.identity names it) whose template the payload matches."""
        key = (client, len(payload))
        sent = self._sent.get(key)
        if sent is None or not sent.template.matches(payload):
            return None
        self._sent.move_to_end(key)
        return sent

    def find_of_any_client(self, payload: bytes) -> Template | None:
        """A template of any client that the payload matches; only the newest eight are tried."""
        newest_first = reversed(self._by_length.get(len(payload), ())[-_MAX_TRIES:])
        return next((template for template in newest_first if template.matches(payload)), None)

    def keep(self, client: bytes, payload: bytes, template: Template, series_ids: Ids) -> None:
        """Stores the template for the client. `series_ids`: one for each point of this payload."""
        key = (client, len(payload))
        self._forget(key)
        if template.users == 0:
            self._by_length[len(payload)].append(template)
            self.nbytes += template.nbytes
        template.users += 1
        self._sent[key] = Sent(template, series_ids)
        self.nbytes += _ENTRY_BYTES + series_ids.nbytes
        self._evict()

    def describe(self, template: Template, decoded: Decoded) -> None:
        """Keeps the series of a template for its other clients, if `decoded`, of such a payload, has them all."""
        if template.described is None and len(decoded.series) == len(set(decoded.points.series_id)):
            template.described = Described(decoded)
            template.nbytes += template.described.nbytes
            self.nbytes += template.described.nbytes
            self._evict()

    def _evict(self) -> None:
        while self.nbytes > self._max_bytes:
            self._forget(next(iter(self._sent)))

    def _forget(self, key: tuple[bytes, int]) -> None:
        sent = self._sent.pop(key, None)
        if sent is None:
            return
        self.nbytes -= _ENTRY_BYTES + sent.series_ids.nbytes
        template = sent.template
        template.users -= 1
        if template.users == 0:
            self.nbytes -= template.nbytes
            self._by_length[key[1]].remove(template)
            if not self._by_length[key[1]]:
                del self._by_length[key[1]]


class _Places(NamedTuple):
    """Offsets of the numbers of a data point, or ABSENT."""

    start: int
    time: int
    as_double: int
    as_int: int


def template_of(payload: bytes, decoded: Decoded) -> Template | None:
    """None when the payload cannot have a template; see the module docstring."""
    plain = bool(decoded.points.value) and not decoded.histograms and not decoded.dropped
    if not plain or len(payload) > _MAX_PAYLOAD_BYTES:
        return None
    message: Any = METRICS.with_bytes.FromString(payload)  # so that it serializes to these bytes
    if message.SerializeToString() != payload:
        return None
    # A client cannot predict these numbers: the hash of bytes has a random key per process.
    base = _DRAWN | (hash(payload) & 0xFFFF_FFFF) << 24
    points = [
        point
        for resource_metrics in message.resource_metrics
        for scope_metrics in resource_metrics.scope_metrics
        for metric in scope_metrics.metrics
        for point in getattr(metric, metric.WhichOneof("data")).data_points
    ]
    drawn = [_draw(point, base + (n << 2)) for n, point in enumerate(points)]
    redrawn = message.SerializeToString()
    if len(redrawn) != len(payload) or len(drawn) != len(decoded.points.value):
        return None
    places, at = [], 0
    for numbers in drawn:  # protobuf serializes fields by number, which is the order of _Places
        offsets = []
        for number in numbers:
            offsets.append(redrawn.find(number.to_bytes(8, "little"), at) if number else ABSENT)
            at = max(at, offsets[-1])
        places.append(_Places(*offsets))
    template = Template(payload, decoded, places)
    # With a wrong or missing offset, one of these numbers would be in the constant part.
    return template if template.matches(redrawn) else None


def _draw(point: Any, number: int) -> _Places:
    """Sets the numbers of a point to `number` and its successors; 0 for fields that it does not have."""
    kind = point.WhichOneof("value")
    drawn = _Places(
        number if point.start_time_unix_nano else 0,
        number + 1 if point.time_unix_nano else 0,
        number + 2 if kind == "as_double" else 0,
        number + 3 if kind == "as_int" else 0,
    )
    point.start_time_unix_nano, point.time_unix_nano = drawn.start, drawn.time
    if kind == "as_double":
        (point.as_double,) = struct.unpack("<d", drawn.as_double.to_bytes(8, "little"))
    elif kind == "as_int":
        point.as_int = drawn.as_int
    return drawn


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
        ranks = np.empty(len(self._numbers), np.int64)
        ranks[[number for _, number in sorted(self._numbers.items())]] = np.arange(len(ranks))
        return ranks


def listed(pushes: Sequence[int], points: Sequence[Points], names: Names) -> PointColumns:
    """Columns of points decoded one by one. `pushes`: the number of the push of each element of `points`."""

    def column(name: str) -> Numbers:
        return np.fromiter(chain.from_iterable(getattr(part, name) for part in points), getattr(_TYPES, name))

    exact = list(chain.from_iterable(part.int_value for part in points))
    return PointColumns(
        push=np.repeat(np.array(pushes, _TYPES.push), [len(part.value) for part in points]),
        metric=names.numbers(chain.from_iterable(part.metric for part in points)),
        ts_ms=column("ts_ms"),
        series_id=column("series_id"),
        value=column("value"),
        int_value=np.array([value or 0 for value in exact], _TYPES.int_value),
        has_int_value=np.array([value is not None for value in exact], _TYPES.has_int_value),
        flags=column("flags"),
        interval_ms=column("interval_ms"),
    )


def gathered(
    template: Template, pushes: Sequence[int], matches: Sequence[TemplateMatch], received_ms: Numbers, names: Names
) -> tuple[PointColumns, int]:
    """Columns of payloads of one template, and how many timestamps were clamped.

    `pushes`: the number of the push of each match; `received_ms`: its receive time, in GATHERABLE_MS.
    """
    # One payload a row, all equally long: element n of a row is the fixed64 at byte offset n.
    length = len(matches[0].payload)
    buffer = b"".join(chain.from_iterable((match.payload, _ABSENT) for match in matches))
    rows = np.ndarray((len(matches), length + 1), "<u8", buffer, strides=(length + len(_ABSENT), 1))

    ns, start_ns = rows[:, template.time_at], rows[:, template.start_at]
    received = received_ms[:, None].astype(np.int64)
    earliest_ns = ((received - MAX_PAST_MS) * _NS_PER_MS).astype(np.uint64)
    latest_ns = ((received + MAX_FUTURE_MS) * _NS_PER_MS).astype(np.uint64)
    in_bounds = (earliest_ns <= ns) & (ns <= latest_ns)
    ts_ms = np.where(in_bounds, (ns // _NS_PER_MS).astype(np.int64), received)
    has_interval = (start_ns > 0) & (start_ns <= ns)
    interval_ms = np.where(has_interval, np.minimum((ns - start_ns) // _NS_PER_MS, _MAX_UINT32), 0).astype(np.uint32)

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
    columns = (
        np.repeat(np.array(pushes, _TYPES.push), len(template)),
        np.tile(names.numbers(template.names), len(matches)),
        ts_ms,
        np.concatenate([match.series_ids for match in matches]),
        value,
        int_value,
        has_int_value,
        np.tile(template.flags, len(matches)),
        interval_ms,
    )
    return PointColumns(*(column.ravel() for column in columns)), int(in_bounds.size - in_bounds.sum())
