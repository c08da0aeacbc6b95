"""Payloads of a structure that was seen before are not parsed: their numbers stand where they stood then. Sans-I/O.

A client pushes the same metrics again and again, and all that changes are OTLP's fixed64 fields: start, time and value.
A template says where those stand; a payload equal to it in all other bytes is decoded by gathering columns
(columns.py), in a twentieth of the time of otlp.decode, whose rows it must equal.

How the places are found: a payload that protobuf writes byte for byte as the client wrote it is written again with
numbers drawn for the purpose, and those are looked for. Nothing here parses protobuf.

Payloads that are not written that way, hold histograms or are very large are decoded by otlp.decode each time.
"""

from __future__ import annotations

import struct
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from telemetry.decode.otlp import NO_RECORDED_VALUE, Decoded

ABSENT = -1  # the place of a field that is not there

_MAX_PAYLOAD_BYTES = 1 << 20
_MAX_TRIES = 8  # templates of the right length that are compared with a payload of a client not seen before
_ENTRY_BYTES = 600  # what an entry costs beside its arrays
_DRAWN = 0x40 << 56  # the highest byte: as a double they are ordinary, as integers positive

Ids = npt.NDArray[np.uint64]


class Template:
    """What all payloads of one structure have in common. Arrays have one element per data point."""

    def __init__(self, payload: bytes, decoded: Decoded, places: Sequence[_Places]) -> None:
        points = decoded.points
        self.names = tuple(map(sys.intern, points.metric))
        self.flags = np.array(points.flags, np.uint8)
        self.has_value = (self.flags & NO_RECORDED_VALUE) == 0
        self.start_at, self.time_at, self.double_at, self.int_at = np.array(places, np.int64).reshape(-1, 4).T
        self.int_columns = np.flatnonzero(self.has_value & (self.int_at != ABSENT))
        self._mask = np.full(len(payload), 0xFF, np.uint8)
        for at in (self.start_at, self.time_at, self.double_at, self.int_at):
            self._mask[(at[at != ABSENT][:, None] + np.arange(8)).ravel()] = 0
        self._constant = self._masked(payload)
        self.nbytes = 2 * len(payload) + 50 * len(places) + sum(map(sys.getsizeof, set(self.names)))  # in memory, about
        self.users = 0  # entries that hold it

    def __len__(self) -> int:
        return len(self.names)

    def matches(self, payload: bytes) -> bool:
        """Whether it differs in nothing but the numbers."""
        return len(payload) == len(self._mask) and self._masked(payload) == self._constant

    def _masked(self, payload: bytes) -> bytes:
        return (np.frombuffer(payload, np.uint8) & self._mask).tobytes()


class Match(NamedTuple):
    """A payload that is a template with other numbers."""

    template: Template
    payload: bytes
    series_ids: Ids


class Sent:
    """What a client sent: the template of its payload and the ids of the series in it."""

    def __init__(self, template: Template, series_ids: Ids) -> None:
        self.template = template
        self.series_ids = series_ids
        self._described: Ids | None = None

    def is_described(self, known: Ids) -> bool:
        """Whether all its series are among the known ones. Costs nothing while those are the same array as before."""
        if self._described is not known and np.isin(self.series_ids, known).all():
            self._described = known
        return self._described is known


class Templates:
    """What clients sent of late: for each client and payload length the template and the ids of its series.

    Bounded to about `max_bytes`; those not used for longest go first. A template that no client uses goes too.
    """

    def __init__(self, max_bytes: int) -> None:
        self.nbytes = 0
        self._max_bytes = max_bytes
        self._sent: OrderedDict[tuple[bytes, int], Sent] = OrderedDict()
        self._by_length: dict[int, list[Template]] = defaultdict(list)

    def __len__(self) -> int:
        """How many templates there are."""
        return sum(map(len, self._by_length.values()))

    def find(self, client: bytes, payload: bytes) -> Sent | None:
        """What the client, as series.identity names it, sent before that differs in nothing but the numbers."""
        key = (client, len(payload))
        sent = self._sent.get(key)
        if sent is None or not sent.template.matches(payload):
            return None
        self._sent.move_to_end(key)
        return sent

    def known(self, payload: bytes) -> Template | None:
        """A template that the payload fits, whoever sent the like before; only some are tried."""
        newest_first = reversed(self._by_length.get(len(payload), ())[-_MAX_TRIES:])
        return next((template for template in newest_first if template.matches(payload)), None)

    def keep(self, client: bytes, payload: bytes, template: Template, decoded: Decoded) -> None:
        """The client's next payload like this one will be found. `decoded`: what otlp.decode made of it."""
        key = (client, len(payload))
        self._forget(key)
        self._take(key, Sent(template, np.array(decoded.points.series_id, np.uint64)))
        while self.nbytes > self._max_bytes:
            self._forget(next(iter(self._sent)))

    def _take(self, key: tuple[bytes, int], sent: Sent) -> None:
        template = sent.template
        if template.users == 0:
            self._by_length[key[1]].append(template)
            self.nbytes += template.nbytes
        template.users += 1
        self._sent[key] = sent
        self.nbytes += _ENTRY_BYTES + sent.series_ids.nbytes

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
    """Of the numbers of a data point, one each: where it stands, or ABSENT."""

    start: int
    time: int
    as_double: int
    as_int: int


def template_of(payload: bytes, decoded: Decoded) -> Template | None:
    """None when the payload is no fit: see the head of this file."""
    plain = bool(decoded.points.value) and not decoded.histograms and not decoded.dropped
    if not plain or len(payload) > _MAX_PAYLOAD_BYTES:
        return None
    message = MetricsData.FromString(payload)
    if message.SerializeToString() != payload:
        return None
    # Nobody can put these numbers into his payload beforehand: the hash of bytes is keyed anew in each process.
    base = _DRAWN | (hash(payload) & 0xFFFF_FFFF) << 24
    drawn = [_draw(point, base + (n << 2)) for n, point in enumerate(_number_points(message))]
    redrawn = message.SerializeToString()
    if len(redrawn) != len(payload) or len(drawn) != len(decoded.points.value):
        return None
    template = Template(payload, decoded, list(_find(redrawn, drawn)))
    # Were a place wrong or missing, a number of ours would stand where the template wants the payload's own.
    return template if template.matches(redrawn) else None


def _number_points(message: Any) -> Iterator[Any]:
    for resource_metrics in message.resource_metrics:
        for scope_metrics in resource_metrics.scope_metrics:
            for metric in scope_metrics.metrics:
                yield from getattr(metric, metric.WhichOneof("data")).data_points


def _draw(point: Any, number: int) -> _Places:
    """Set the numbers that a point has to this one and those that follow; 0 for what it has not."""
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


def _find(data: bytes, drawn: Sequence[_Places]) -> Iterator[_Places]:
    """Protobuf writes fields by number: in the order of _Places."""
    at = 0
    for numbers in drawn:
        places = []
        for number in numbers:
            places.append(data.find(number.to_bytes(8, "little"), at) if number else ABSENT)
            at = max(at, places[-1])
        yield _Places(*places)
