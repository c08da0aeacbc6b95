"""Budgets of one push, and of one client in a minute. Sans-I/O.

Those of a push are checked on the encoded protobuf before protobuf allocates anything.

Two bytes of payload can become a row, or a message object of over 80 bytes. `check_structure` walks the encoded
fields (https://protobuf.dev/programming-guides/encoding/) and stops at the first exceeded budget, so that its own cost
is bounded by `PayloadLimits.fields`. otlp.decode checks the budgets of text and of the buckets of one point.
Nesting is limited by protobuf itself, to 100 messages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from exporters.identity import payer_of
from exporters.model import Push

_MIN_ELEMENT_BYTES = 2  # tag and length of an empty message
_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_GROUPS = (3, 4)  # start and end of a group; its fields are counted with the enclosing message
_MAX_DEPTH = 100  # protobuf's own limit
_CONTINUED = bytes(range(0x80, 0x100))  # the bytes of a varint except its last
_BUCKET_FIELDS = frozenset(("bucket_counts", "explicit_bounds", "quantile_values"))


POINTS_OF_SMALLEST: Final = 500  # of a push of no bytes; exporters.spool.lanes charges as many


class DecodeError(ValueError):
    """The payload cannot be parsed as MetricsData."""


class OverBudget(ValueError):  # noqa: N818 - a condition, as compression.TooLarge
    """The payload exceeds the budget of one push, or of one client per minute."""


@dataclass(frozen=True, slots=True)
class PayloadLimits:
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
    points_per_byte: float = 1.0  # of the payload as it arrived; see `of_push`

    def points_of_push(self, nbytes: int) -> int:
        """How many points a push may have whose payload arrived in `nbytes` bytes.

        Real clients send 15 to 30 bytes a point, compressed (Java 4.3 with zstd, librdkafka, franz-go); a push of zeros
        that repeats a few names needs two. What decompresses to more only costs others their turn.
        """
        return min(self.points, POINTS_OF_SMALLEST + int(self.points_per_byte * nbytes))

    @property
    def unchecked_bytes(self) -> int:
        """Payloads up to this size cannot exceed a budget that `check_structure` checks, except those per point."""
        return _MIN_ELEMENT_BYTES * min(self.points, self.fields, self.messages, self.pairs, self.items)


def check_structure(payload: bytes, limits: PayloadLimits) -> None:
    """Raises OverBudget, or DecodeError when the bytes are not encoded protobuf."""
    _check(payload, limits, _METRICS_DATA)


def check_outline(payload: bytes, limits: PayloadLimits) -> None:
    """As check_structure, but counts data points without looking into them: for requests that carry many."""
    _check(payload, limits, _OUTLINE)


def _check(payload: bytes, limits: PayloadLimits, fields: dict[int, _Field]) -> None:
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

    def __init__(self, payload: bytes, limits: PayloadLimits) -> None:
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


_MS_PER_MINUTE = 60_000
_TIMES_PER_PAYER = 30
_MAX_OWNERS = 65_536  # whose counts are kept; above it those counted first are forgotten


@dataclass(slots=True)
class _Use:
    minute: int
    points: int = 0
    series: int = 0


class ClientBudgets:
    """Counts by the minute in which a push was received, so that a backlog is treated like live traffic.

    A client chooses its instance ids, so its payer (exporters.identity.payer_of) has a budget as well: by default that
    of 10,000 instances that push 1,000 points every ten seconds, and of as many that start at once with 600 series.
    Counts are in memory only and restart with the process.
    """

    def __init__(
        self, points: int = 2_000_000, series: int = 200_000, *, times_per_payer: int = _TIMES_PER_PAYER
    ) -> None:
        """Of a client; a payer has `times_per_payer` as much."""
        self._clients = _Counts("client", points, series)
        self._payers = _Counts("payer", times_per_payer * points, times_per_payer * series)

    def charge(self, client: bytes, push: Push, points: int, series: int) -> None:
        """Adds the counts of a push. `client`: as in series.identity. Raises OverBudget and then adds nothing."""
        minute = push.received_at_ms // _MS_PER_MINUTE
        of_client = self._clients.checked(client, minute, points, series)
        of_payer = self._payers.checked(
            _payer(push.connection.principal, push.connection.source_address), minute, points, series
        )
        for use in (of_client, of_payer):
            use.points += points
            use.series += series


@lru_cache(maxsize=_MAX_OWNERS)
def _payer(principal: str, address: str) -> str:
    try:
        return payer_of(principal, address)
    except ValueError:  # an address that a sender of OTLP states
        return address


class _Counts:
    """The counts of all clients, or of all payers."""

    def __init__(self, owner: str, points: int, series: int) -> None:
        self._owner = owner
        self._points = points
        self._series = series
        self._uses: dict[bytes | str, _Use] = {}

    def checked(self, owner: bytes | str, minute: int, points: int, series: int) -> _Use:
        """The counts of an owner that has this much left. Raises OverBudget."""
        use = self._uses.get(owner)
        if use is None:
            if len(self._uses) >= _MAX_OWNERS:
                del self._uses[next(iter(self._uses))]
            use = self._uses[owner] = _Use(minute)
        elif use.minute != minute:
            use.minute, use.points, use.series = minute, 0, 0
        if use.points + points > self._points:
            raise over_budget(f"points of one {self._owner} in a minute", self._points)
        if use.series + series > self._series:
            raise over_budget(f"new series of one {self._owner} in a minute", self._series)
        return use
