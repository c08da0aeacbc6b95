"""Budgets of one push, checked on the encoded protobuf before protobuf allocates anything. Sans-I/O.

Two bytes of payload can become a row, or a message object of over 80 bytes. `check_structure` walks the encoded
fields (https://protobuf.dev/programming-guides/encoding/) and stops at the first exceeded budget, so that its own cost
is bounded by `Limits.fields`. otlp.decode checks the budgets of text and of the buckets of one point.
Nesting is limited by protobuf itself, to 100 messages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

_MIN_ELEMENT_BYTES = 2  # tag and length of an empty message
_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_GROUPS = (3, 4)  # start and end of a group; its fields are counted with the enclosing message
_MAX_DEPTH = 100  # protobuf's own limit
_CONTINUED = bytes(range(0x80, 0x100))  # the bytes of a varint except its last
_BUCKET_FIELDS = frozenset(("bucket_counts", "explicit_bounds", "quantile_values"))


class DecodeError(ValueError):
    """The payload cannot be parsed as MetricsData."""


class OverBudget(ValueError):  # noqa: N818 - a condition, as compression.TooLarge
    """The payload exceeds the budget of one push, or of one client per minute."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Budgets of one push. Attributes over `attributes` per list and text over `chars` are cut, not refused."""

    points: int = 50_000
    attributes: int = 64
    chars: int = 1024
    fields: int = 2_000_000  # encoded fields of any kind
    messages: int = 600_000  # embedded messages of any kind
    pairs: int = 250_000  # KeyValues, including repeated keys
    items: int = 65_536  # elements of array and key-value list attributes
    buckets: int = 500_000  # counts, bounds and quantiles of all histogram points
    point_buckets: int = 8_192  # the same, per point
    text_bytes: int = 16 << 20  # stored attributes of new series and histograms, counted once per row

    @property
    def unchecked_bytes(self) -> int:
        """Payloads up to this size cannot exceed a budget that `check_structure` checks, except those per point."""
        return _MIN_ELEMENT_BYTES * min(self.points, self.fields, self.messages, self.pairs, self.items)


def check_structure(payload: bytes, limits: Limits) -> None:
    """Raises OverBudget, or DecodeError when the bytes are not encoded protobuf."""
    _check(payload, limits, _METRICS_DATA)


def check_outline(payload: bytes, limits: Limits) -> None:
    """As check_structure, but counts data points without looking into them: for requests that carry many."""
    _check(payload, limits, _OUTLINE)


def _check(payload: bytes, limits: Limits, fields: dict[int, _Field]) -> None:
    if len(payload) > limits.unchecked_bytes:
        try:
            _Scan(payload, limits).message(0, len(payload), fields, 0)
        except IndexError as exc:
            raise DecodeError(f"cannot decode {len(payload)} bytes as MetricsData: truncated") from exc


class _Field(NamedTuple):
    """How the scan treats a field of a message. `budget`: the budget that its elements count against.

    `message`: the fields of an embedded message, None when the scan does not look into it.
    """

    message: dict[int, _Field] | None
    budget: str
    packed: Callable[[bytes], int] | None  # counts the elements of a packed field


def _fields(descriptor: Any, seen: dict[str, dict[int, _Field]], into_points: bool) -> dict[int, _Field]:
    """The counted fields of a message, by number. Message types may be recursive."""
    if descriptor.full_name in seen:
        return seen[descriptor.full_name]
    fields = seen[descriptor.full_name] = {}
    for field in descriptor.fields:
        if field.name == "data_points" and not into_points:
            fields[field.number] = _Field(None, "points", None)
        elif field.message_type is not None:
            fields[field.number] = _Field(_fields(field.message_type, seen, into_points), _budget(field), None)
        elif field.name in _BUCKET_FIELDS:
            packed = _packed_varints if field.type == field.TYPE_UINT64 else _packed_fixed64
            fields[field.number] = _Field(None, "buckets", packed)
    return fields


def _budget(field: Any) -> str:
    if field.name == "data_points":
        return "points"
    if field.name in _BUCKET_FIELDS:
        return "buckets"
    if field.name == "values" and field.containing_type.name in ("ArrayValue", "KeyValueList"):
        return "items"
    return "pairs" if field.message_type.name == "KeyValue" else "messages"


def _packed_varints(data: bytes) -> int:
    return len(data.translate(None, _CONTINUED))


def _packed_fixed64(data: bytes) -> int:
    return len(data) // 8


class _Scan:
    """The scan of one payload; raises as soon as a count exceeds its budget."""

    def __init__(self, payload: bytes, limits: Limits) -> None:
        self._payload = payload
        self._limits = limits
        self._left = {name: getattr(limits, name) for name in ("points", "pairs", "items", "buckets")}
        self._left_fields = limits.fields
        self._left_messages = limits.messages

    def message(self, at: int, end: int, fields: dict[int, _Field], depth: int) -> None:
        """Scans the message from `at` to `end`. Raises OverBudget, DecodeError, IndexError (truncated)."""
        if depth > _MAX_DEPTH:
            raise DecodeError(f"cannot decode {len(self._payload)} bytes as MetricsData: nested too deeply")
        payload = self._payload
        while at < end:
            self._left_fields -= 1
            if self._left_fields < 0:
                raise self._over("fields")
            tag, at = _varint(payload, at)
            number, wire_type = tag >> 3, tag & 7
            field = fields.get(number)
            if wire_type == _LENGTH_DELIMITED:
                length, at = _varint(payload, at)
                if length > end - at:
                    raise IndexError
                if field is not None:
                    self._embedded(field, at, at + length, depth)
                at += length
                continue
            if field is not None and field.packed is not None:
                self._take("buckets", 1)
            at = _behind_scalar(payload, at, wire_type)
        if at > end:
            raise IndexError

    def _embedded(self, field: _Field, at: int, end: int, depth: int) -> None:
        if field.packed is not None:
            self._take("buckets", field.packed(self._payload[at:end]))
            return
        self._left_messages -= 1
        if self._left_messages < 0:
            raise self._over("messages")
        if field.budget != "messages":
            self._take(field.budget, 1)
        if field.message is not None:
            self.message(at, end, field.message, depth + 1)

    def _take(self, budget: str, count: int) -> None:
        self._left[budget] -= count
        if self._left[budget] < 0:
            raise self._over(budget)

    def _over(self, budget: str) -> OverBudget:
        return over_budget(budget, getattr(self._limits, budget))


def over_budget(budget: str, limit: int) -> OverBudget:
    """The refusal of a push that exceeds the budget of this name."""
    return OverBudget(f"cannot keep the push: more than {limit} {budget}")


def _varint(payload: bytes, at: int) -> tuple[int, int]:
    """The varint at `at` and its end. Raises IndexError, DecodeError."""
    byte = payload[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while shift < 70:
        at += 1
        byte = payload[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
    raise DecodeError(f"cannot decode {len(payload)} bytes as MetricsData: a varint is too long")


def _behind_scalar(payload: bytes, at: int, wire_type: int) -> int:
    if wire_type == _FIXED64:
        return at + 8
    if wire_type == _VARINT:
        return _varint(payload, at)[1]
    if wire_type == _FIXED32:
        return at + 4
    if wire_type in _GROUPS:
        return at
    raise DecodeError(f"cannot decode {len(payload)} bytes as MetricsData: wire type {wire_type}")


_METRICS_DATA = _fields(MetricsData.DESCRIPTOR, {}, True)
_OUTLINE = _fields(MetricsData.DESCRIPTOR, {}, False)
