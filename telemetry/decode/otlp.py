"""Decodes an OTLP MetricsData payload to columns of points, series and histograms. Sans-I/O.

Rules: a value that was not measured is never stored as 0. NaN remains NaN (Java's averages without samples); a point
without a value, or flagged as such, is NaN with bit 0 of its flags set. Integers over 2^53 are also stored exactly in
`int_value`. A timestamp outside [received - 7 days, received + 10 minutes] is replaced by the time of receipt and
counted: a client with a wrong clock must not create partitions, but its values are stored. Texts that are not UTF-8 get
replacement characters (lenient.py). The client's clock measures `interval_ms`. The connection of the push tells the
sender; attributes named client_id or principal have no special meaning.

Histograms, exponential histograms and summaries become one kind of row. Kafka clients do not send them today;
applications that use the same receiver do. Fields that a point does not have (sum, min, max) are None, never 0.
"""

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError as ProtobufError

from exporters.model import DropReason, Push
from telemetry.decode.bounds import DecodeError, PayloadLimits, check_structure, data_points, over_budget
from telemetry.decode.lenient import METRICS, Read
from telemetry.decode.series import Attributes, Series, attributes_of, identity, series_id, text_bytes

_INT8 = range(-128, 128)


@dataclass(frozen=True, slots=True)
class Distribution:
    """The measured part of a row of client_histograms, for all kinds."""

    count: int
    sum: float | None
    min: float | None
    max: float | None
    bounds: Sequence[float] = ()
    bucket_counts: Sequence[int] = ()
    scale: int = 0
    zero_count: int = 0
    zero_threshold: float = 0.0
    pos_offset: int = 0
    pos_counts: Sequence[int] = ()
    neg_offset: int = 0
    neg_counts: Sequence[int] = ()
    quantiles: Sequence[tuple[float, float]] = ()


class Histogram(NamedTuple):
    """A row of client_histograms without the columns of the connection."""

    metric: str
    ts_ms: int
    series_id: int
    kind: str  # 'histogram' | 'exp_histogram' | 'summary'
    temporality: str
    flags: int
    interval_ms: int
    unit: str
    attributes: Attributes
    resource: Attributes
    distribution: Distribution


def bucket_count(point: Any) -> int:
    """The number of counts, bounds or quantiles of a point of any kind."""
    if hasattr(point, "bucket_counts"):
        return len(point.bucket_counts) + len(point.explicit_bounds)
    if hasattr(point, "positive"):
        return len(point.positive.bucket_counts) + len(point.negative.bucket_counts)
    return len(point.quantile_values)


def _explicit(point: Any) -> Distribution:
    return Distribution(
        point.count,
        *_optional(point),
        bounds=list(point.explicit_bounds),
        bucket_counts=list(point.bucket_counts),
    )


def _exponential(point: Any) -> Distribution:
    if point.scale not in _INT8:  # OpenTelemetry's own range is -10 to 20
        raise ValueError(f"cannot store an exponential histogram of scale {point.scale}")
    return Distribution(
        point.count,
        *_optional(point),
        scale=point.scale,
        zero_count=point.zero_count,
        zero_threshold=point.zero_threshold,
        pos_offset=point.positive.offset,
        pos_counts=list(point.positive.bucket_counts),
        neg_offset=point.negative.offset,
        neg_counts=list(point.negative.bucket_counts),
    )


def _summary(point: Any) -> Distribution:
    quantiles = [(quantile.quantile, quantile.value) for quantile in point.quantile_values]
    return Distribution(point.count, point.sum, None, None, quantiles=quantiles)


def _optional(point: Any) -> tuple[float | None, float | None, float | None]:
    return (
        point.sum if point.HasField("sum") else None,
        point.min if point.HasField("min") else None,
        point.max if point.HasField("max") else None,
    )


# By the name of the field in OTLP's Metric: the stored kind, and the reader of its points.
# The readers raise ValueError when a point cannot be stored.
KINDS: dict[str, tuple[str, Callable[[Any], Distribution]]] = {
    "histogram": ("histogram", _explicit),
    "exponential_histogram": ("exp_histogram", _exponential),
    "summary": ("summary", _summary),
}


NO_RECORDED_VALUE = 1  # DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK
MAX_PAST_MS = 7 * 86_400_000
MAX_FUTURE_MS = 600_000

_EXACT_DOUBLE = 1 << 53
_MAX_UINT8 = (1 << 8) - 1
_MAX_UINT32 = (1 << 32) - 1
_NS_PER_MS = 1_000_000
_TEMPORALITIES = ("unspecified", "delta", "cumulative")  # AggregationTemporality, by number


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
    """The content of one push. `series`: new series only."""

    points: Points = field(default_factory=Points)
    series: dict[int, Series] = field(default_factory=dict)
    histograms: list[Histogram] = field(default_factory=list)
    text_bytes: int = 0  # attributes of `series` and `histograms`, resource attributes repeated for each of them
    buckets: int = 0  # of `histograms`
    clamped_timestamps: int = 0
    replaced_texts: int = 0  # that were no UTF-8
    dropped: Counter[DropReason] = field(default_factory=Counter)


def decode(payload: bytes, push: Push, limits: PayloadLimits, known_ids: Container[int]) -> Decoded:
    """Decodes a payload; series whose id is in `known_ids` are not described again. Raises DecodeError, OverBudget."""
    read = _parsed(payload, limits)
    decoded = _Walk(identity(push), push.received_at_ms, limits, known_ids).walk(read.message)
    decoded.replaced_texts = read.replaced
    return decoded


def check(payload: bytes, limits: PayloadLimits) -> None:
    """Whether `decode` accepts a payload: raises DecodeError, OverBudget. Rows are made only where a budget is near."""
    message = _parsed(payload, limits).message
    metrics = [
        metric
        for resource_metrics in message.resource_metrics
        for scope_metrics in resource_metrics.scope_metrics
        for metric in scope_metrics.metrics
    ]
    points = sum(len(data_points(metric)) for metric in metrics)
    are_numbers = KINDS.keys().isdisjoint(metric.WhichOneof("data") for metric in metrics)
    if points > limits.points or points * len(payload) > limits.text_bytes or not are_numbers:
        _Walk(b"", 0, limits, ()).walk(message)


def _parsed(payload: bytes, limits: PayloadLimits) -> Read:
    check_structure(payload, limits)
    try:
        return METRICS.read(payload)
    except ProtobufError as exc:
        raise DecodeError(f"cannot decode {len(payload)} bytes as MetricsData: {exc}") from exc


class _Scope(NamedTuple):
    """Data shared by all series of a ScopeMetrics, converted once: a payload may have 50,000 series."""

    name: str
    version: str
    resource: Attributes
    resource_bytes: int


class _Metric(NamedTuple):
    """Data shared by all points of a Metric, as Python strings: protobuf decodes a string at each access."""

    name: str
    unit: str
    kind: str
    temporality: str
    monotonic: bool


class _Walk:
    """Decodes one payload, point by point."""

    def __init__(self, client: bytes, received_ms: int, limits: PayloadLimits, known_ids: Container[int]) -> None:
        """`client`: as series.identity names it."""
        self.decoded = Decoded()
        self._limits = limits
        self._known_ids = known_ids
        self._identity = client
        self._received_ms = received_ms
        self._earliest_ns = (received_ms - MAX_PAST_MS) * _NS_PER_MS
        self._latest_ns = (received_ms + MAX_FUTURE_MS) * _NS_PER_MS
        self._points_left = limits.points
        self._resource: Attributes | None = None
        self._scope: _Scope | None = None

    def walk(self, message: Any) -> Decoded:
        for resource_metrics in message.resource_metrics:
            self._resource_metrics, self._resource = resource_metrics, None
            for scope_metrics in resource_metrics.scope_metrics:
                self._scope_metrics, self._scope = scope_metrics, None
                for metric in scope_metrics.metrics:
                    self._metric(metric)
        return self.decoded

    def _metric(self, metric: Any) -> None:
        kind = metric.WhichOneof("data")
        if kind is None:
            self.decoded.dropped[DropReason.UNSUPPORTED_KIND] += 1
            return
        data = getattr(metric, kind)
        points = data.data_points
        self._points_left -= len(points)
        if self._points_left < 0:
            raise over_budget("points", self._limits.points)
        chars = self._limits.chars
        name, unit = metric.name[:chars], metric.unit[:chars]
        if kind == "gauge":
            self._numbers(_Metric(name, unit, "gauge", "unspecified", False), points)
        elif kind == "sum":
            temporality = _temporality(data.aggregation_temporality)
            self._numbers(_Metric(name, unit, "sum", temporality, data.is_monotonic), points)
        else:
            stored, distribution_of = KINDS[kind]
            temporality = "unspecified" if stored == "summary" else _temporality(data.aggregation_temporality)
            self._histograms(_Metric(name, unit, stored, temporality, False), distribution_of, points)

    def _numbers(self, metric: _Metric, sent: Iterable[Any]) -> None:
        points = self.decoded.points
        for point in sent:
            pairs = point.attributes
            attributes = self._attributes(pairs) if pairs else ()
            id_ = series_id(self._identity, metric.name, metric.kind, metric.temporality, attributes)
            if id_ not in self._known_ids and id_ not in self.decoded.series:
                scope = self._charge_texts(attributes)
                self.decoded.series[id_] = Series(
                    metric=metric.name,
                    kind=metric.kind,
                    temporality=metric.temporality,
                    monotonic=metric.monotonic,
                    unit=metric.unit,
                    attributes=attributes,
                    resource=scope.resource,
                    scope_name=scope.name,
                    scope_version=scope.version,
                )
            flags: int = point.flags & _MAX_UINT8
            kind = point.WhichOneof("value")
            value, int_value = math.nan, None
            if kind is None or flags & NO_RECORDED_VALUE:
                flags |= NO_RECORDED_VALUE
            elif kind == "as_double":
                value = point.as_double
            else:
                exact: int = point.as_int
                value, int_value = float(exact), exact if abs(exact) > _EXACT_DOUBLE else None
            ns, start_ns = point.time_unix_nano, point.start_time_unix_nano
            points.metric.append(metric.name)
            points.series_id.append(id_)
            points.ts_ms.append(self._ts_ms(ns))
            points.interval_ms.append(_interval_ms(start_ns, ns) if start_ns else 0)
            points.value.append(value)
            points.int_value.append(int_value)
            points.flags.append(flags)

    def _histograms(self, metric: _Metric, distribution_of: Callable[[Any], Distribution], sent: Iterable[Any]) -> None:
        for point in sent:
            buckets = bucket_count(point)  # before they are copied
            self.decoded.buckets += buckets
            if buckets > self._limits.point_buckets:
                raise over_budget("point_buckets", self._limits.point_buckets)
            if self.decoded.buckets > self._limits.buckets:
                raise over_budget("buckets", self._limits.buckets)
            try:
                distribution = distribution_of(point)
            except ValueError:
                self.decoded.dropped[DropReason.DECODE] += 1
                continue
            attributes = self._attributes(point.attributes)
            histogram = Histogram(
                metric=metric.name,
                ts_ms=self._ts_ms(point.time_unix_nano),
                series_id=series_id(self._identity, metric.name, metric.kind, metric.temporality, attributes),
                kind=metric.kind,
                temporality=metric.temporality,
                flags=point.flags & _MAX_UINT8,
                interval_ms=_interval_ms(point.start_time_unix_nano, point.time_unix_nano),
                unit=metric.unit,
                attributes=attributes,
                resource=self._charge_texts(attributes).resource,
                distribution=distribution,
            )
            self.decoded.histograms.append(histogram)

    def _charge_texts(self, attributes: Attributes) -> _Scope:
        """Counts the texts of a row with these attributes, and returns its scope. Raises OverBudget."""
        scope = self._scope
        if scope is None:  # converted only for new series: most are known
            if self._resource is None:
                self._resource = self._attributes(self._resource_metrics.resource.attributes)
            raw, chars = self._scope_metrics.scope, self._limits.chars
            scope = _Scope(raw.name[:chars], raw.version[:chars], self._resource, text_bytes(self._resource))
            self._scope = scope
        self.decoded.text_bytes += text_bytes(attributes) + scope.resource_bytes
        if self.decoded.text_bytes > self._limits.text_bytes:
            raise over_budget("text_bytes", self._limits.text_bytes)
        return scope

    def _attributes(self, pairs: Any) -> Attributes:
        return attributes_of(pairs, self._limits.attributes, self._limits.chars)

    def _ts_ms(self, ns: int) -> int:
        if self._earliest_ns <= ns <= self._latest_ns:
            return ns // _NS_PER_MS
        self.decoded.clamped_timestamps += 1
        return self._received_ms


def _interval_ms(start_ns: int, ns: int) -> int:
    """Measured by the client's clock; 0 without a start time, or with one after the time."""
    return min((ns - start_ns) // _NS_PER_MS, _MAX_UINT32) if 0 < start_ns <= ns else 0


def _temporality(number: int) -> str:
    return _TEMPORALITIES[number] if 0 <= number < len(_TEMPORALITIES) else _TEMPORALITIES[0]
