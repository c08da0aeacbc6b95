"""An OTLP MetricsData payload -> points, series and histograms, in columns. Sans-I/O.

Rules: nothing is stored as 0 that was not measured. NaN stays NaN (Java's averages without samples); a point without
a value, or flagged as such, is NaN with bit 0 of its flags set. Integers beyond 2^53 also stand exactly in
`int_value`. A timestamp outside [received - 7 days, received + 10 minutes] becomes the time of receipt and is counted:
a client with a bad clock must not create partitions, and its values are still worth having. `interval_ms` is what the
client's own clock says. Who sent it comes from the push (its connection); attributes called client_id or principal
are attributes like all others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError as ProtobufError
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from exporters.model import DropReason, Push
from telemetry.decode.histograms import KINDS, Distribution, Histogram
from telemetry.decode.series import Attributes, Series, attributes_of, identity, series_id

NO_RECORDED_VALUE = 1  # DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK
MAX_PAST_MS = 7 * 86_400_000
MAX_FUTURE_MS = 600_000

_EXACT_DOUBLE = 1 << 53
_MAX_UINT8 = (1 << 8) - 1
_MAX_UINT32 = (1 << 32) - 1
_NS_PER_MS = 1_000_000
_MIN_POINT_BYTES = 2  # the tag and the length of an empty one
_TEMPORALITIES = ("unspecified", "delta", "cumulative")  # AggregationTemporality, by number


class DecodeError(ValueError):
    """The payload is no MetricsData."""


class TooManyPoints(ValueError):  # noqa: N818 - a condition, as compression.TooLarge
    """The payload holds more points than one push may."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a payload is kept. Texts are cut to `chars`, attributes beyond `attributes` are left out."""

    points: int = 50_000
    attributes: int = 64
    chars: int = 1024


@dataclass(slots=True)
class Points:
    """Data points of gauges and sums: one list per column, equally long."""

    metric: list[str] = field(default_factory=list)
    ts_ms: list[int] = field(default_factory=list)
    series_id: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)
    int_value: list[int | None] = field(default_factory=list)
    flags: list[int] = field(default_factory=list)
    interval_ms: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Decoded:
    """What one push holds. `series` has those that were not known before."""

    points: Points = field(default_factory=Points)
    series: dict[int, Series] = field(default_factory=dict)
    histograms: list[Histogram] = field(default_factory=list)
    clamped_timestamps: int = 0
    dropped: Counter[DropReason] = field(default_factory=Counter)


def decode(payload: bytes, push: Push, limits: Limits, known: Container[int]) -> Decoded:
    """All that a decompressed payload holds; series whose id is in `known` are not described again.

    Raises DecodeError, TooManyPoints.
    """
    walk = _Walk(push, limits, known)
    for resource_metrics in _parsed(payload).resource_metrics:
        for scope_metrics in resource_metrics.scope_metrics:
            walk.enter(resource_metrics, scope_metrics)
            for metric in scope_metrics.metrics:
                walk.metric(metric)
    return walk.decoded


def check(payload: bytes, limits: Limits) -> None:
    """Whether `decode` would take a payload: raises DecodeError, TooManyPoints."""
    message = _parsed(payload)
    if len(payload) <= limits.points * _MIN_POINT_BYTES:
        return
    metrics = (
        one for resource in message.resource_metrics for scope in resource.scope_metrics for one in scope.metrics
    )
    points = sum(len(getattr(metric, kind).data_points) for metric in metrics if (kind := metric.WhichOneof("data")))
    if points > limits.points:
        raise TooManyPoints(f"cannot take {points} points: the limit is {limits.points}")


def _parsed(payload: bytes) -> Any:
    try:
        return MetricsData.FromString(payload)
    except ProtobufError as exc:
        raise DecodeError(f"cannot decode {len(payload)} bytes as MetricsData: {exc}") from exc


class _Walk:
    """One payload being read, point by point."""

    def __init__(self, push: Push, limits: Limits, known: Container[int]) -> None:
        self.decoded = Decoded()
        self._limits = limits
        self._known = known
        self._identity = identity(push)
        self._received_ms = push.received_at_ms
        self._earliest_ns = (push.received_at_ms - MAX_PAST_MS) * _NS_PER_MS
        self._latest_ns = (push.received_at_ms + MAX_FUTURE_MS) * _NS_PER_MS
        self._room = limits.points

    def enter(self, resource_metrics: Any, scope_metrics: Any) -> None:
        # Not looked into until a series is new: most are known, and each access makes an object.
        self._resource_metrics = resource_metrics
        self._scope_metrics = scope_metrics

    def metric(self, metric: Any) -> None:
        kind = metric.WhichOneof("data")
        if kind is None:
            self.decoded.dropped[DropReason.UNSUPPORTED_KIND] += 1
            return
        data = getattr(metric, kind)
        data_points = data.data_points
        self._room -= len(data_points)
        if self._room < 0:
            raise TooManyPoints(f"cannot keep a push of more than {self._limits.points} points")
        if kind == "gauge":
            self._numbers(metric, "gauge", "unspecified", False, data_points)
        elif kind == "sum":
            self._numbers(metric, "sum", _temporality(data.aggregation_temporality), data.is_monotonic, data_points)
        else:
            self._histograms(metric, kind, data)

    def _numbers(self, metric: Any, kind: str, temporality: str, monotonic: bool, data_points: Iterable[Any]) -> None:
        name = metric.name[: self._limits.chars]
        points = self.decoded.points
        for point in data_points:
            pairs = point.attributes
            attributes = self._attributes(pairs) if pairs else ()
            id_ = series_id(self._identity, name, kind, temporality, attributes)
            if id_ not in self._known and id_ not in self.decoded.series:
                self.decoded.series[id_] = self._series(metric, kind, temporality, monotonic, attributes)
            value, int_value, flags = _value(point)
            ns, start_ns = point.time_unix_nano, point.start_time_unix_nano
            points.metric.append(name)
            points.series_id.append(id_)
            points.ts_ms.append(self._ts_ms(ns))
            points.interval_ms.append(_interval_ms(start_ns, ns) if start_ns else 0)
            points.value.append(value)
            points.int_value.append(int_value)
            points.flags.append(flags)

    def _histograms(self, metric: Any, field_name: str, data: Any) -> None:
        kind, distribution_of = KINDS[field_name]
        temporality = "unspecified" if kind == "summary" else _temporality(data.aggregation_temporality)
        for point in data.data_points:
            try:
                distribution = distribution_of(point)
            except ValueError:
                self.decoded.dropped[DropReason.DECODE] += 1
            else:
                self.decoded.histograms.append(self._histogram(metric, kind, temporality, point, distribution))

    def _histogram(self, metric: Any, kind: str, temporality: str, point: Any, distribution: Distribution) -> Histogram:
        name = metric.name[: self._limits.chars]
        attributes = self._attributes(point.attributes)
        return Histogram(
            metric=name,
            ts_ms=self._ts_ms(point.time_unix_nano),
            series_id=series_id(self._identity, name, kind, temporality, attributes),
            kind=kind,
            temporality=temporality,
            flags=point.flags & _MAX_UINT8,
            interval_ms=_interval_ms(point.start_time_unix_nano, point.time_unix_nano),
            unit=metric.unit[: self._limits.chars],
            attributes=attributes,
            resource=self._attributes(self._resource_metrics.resource.attributes),
            distribution=distribution,
        )

    def _series(self, metric: Any, kind: str, temporality: str, monotonic: bool, attributes: Attributes) -> Series:
        chars = self._limits.chars
        scope = self._scope_metrics.scope
        return Series(
            metric=metric.name[:chars],
            kind=kind,
            temporality=temporality,
            monotonic=monotonic,
            unit=metric.unit[:chars],
            attributes=attributes,
            resource=self._attributes(self._resource_metrics.resource.attributes),
            scope_name=scope.name[:chars],
            scope_version=scope.version[:chars],
        )

    def _attributes(self, pairs: Any) -> Attributes:
        return attributes_of(pairs, self._limits.attributes, self._limits.chars)

    def _ts_ms(self, ns: int) -> int:
        if self._earliest_ns <= ns <= self._latest_ns:
            return ns // _NS_PER_MS
        self.decoded.clamped_timestamps += 1
        return self._received_ms


def _value(point: Any) -> tuple[float, int | None, int]:
    """The columns value, int_value and flags of a number point."""
    flags: int = point.flags & _MAX_UINT8
    kind = point.WhichOneof("value")
    if kind is None or flags & NO_RECORDED_VALUE:
        return math.nan, None, flags | NO_RECORDED_VALUE
    if kind == "as_double":
        return point.as_double, None, flags
    exact: int = point.as_int
    return float(exact), exact if abs(exact) > _EXACT_DOUBLE else None, flags


def _interval_ms(start_ns: int, ns: int) -> int:
    """By the client's own clock, right or wrong; 0 when it gave no start, or a later one."""
    return min((ns - start_ns) // _NS_PER_MS, _MAX_UINT32) if 0 < start_ns <= ns else 0


def _temporality(number: int) -> str:
    return _TEMPORALITIES[number] if 0 <= number < len(_TEMPORALITIES) else _TEMPORALITIES[0]
