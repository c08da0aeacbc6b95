"""What the payload of a push must be: the offered codec, OTLP MetricsData, the requested names and temporality.

Sans-I/O. telemetry.decode.bounds stops hostile payloads before protobuf allocates anything.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError as ProtobufError
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, MetricsData

from telemetry.decode.bounds import (
    DecodeError,
    DecompressError,
    OverBudget,
    PayloadLimits,
    TooLarge,
    check_structure,
    codec_name,
    decompress,
)
from telemetry.verification.findings import Findings, KipRule

MAX_DECOMPRESSED_BYTES: Final = 16 << 20
_LIMITS: Final = PayloadLimits()
_KINDS: Final = ("gauge", "sum", "histogram", "exponential_histogram", "summary")
_DELTA: Final = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
_CUMULATIVE: Final = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE


class Offer(NamedTuple):
    """What the client was offered: prefixes of metric names ("" and "*" alone are all), ids of codecs, temporality."""

    metrics: tuple[str, ...]
    codecs: bytes
    delta: bool

    @property
    def is_all(self) -> bool:
        return self.metrics in {("*",), ("",)}


class _Last(NamedTuple):
    """The last point of a series: start and time in ns, and value."""

    start: int
    time: int
    value: float


class PayloadCheck:
    """Checks the pushes under one subscription, in their order."""

    def __init__(self, offer: Offer, findings: Findings) -> None:
        self.offer = offer
        self.names: set[str] = set()
        self._findings = findings
        self._last: dict[bytes, _Last] = {}

    def push(self, compression_type: int, payload: bytes, frame: bytes) -> None:
        """`frame`: the request, which findings show."""
        findings, codec = self._findings, codec_name(compression_type)
        findings.observed(KipRule.COMPRESSION)
        if compression_type and (compression_type < 0 or compression_type not in self.offer.codecs):
            offered = ", ".join(map(codec_name, self.offer.codecs))
            findings.broken(KipRule.COMPRESSION, f"the push uses {codec}; offered were {offered}", frame)
        try:
            data = decompress(compression_type, payload, max_bytes=MAX_DECOMPRESSED_BYTES) if payload else b""
        except TooLarge as exc:
            findings.broken(KipRule.PAYLOAD, str(exc), frame)
            return
        except DecompressError as exc:
            findings.broken(KipRule.COMPRESSION, str(exc), frame)
            return
        findings.observed(KipRule.PAYLOAD)
        try:
            check_structure(data, _LIMITS)
            decoded = MetricsData.FromString(data)
        except (DecodeError, OverBudget, ProtobufError) as exc:
            findings.broken(KipRule.PAYLOAD, f"the payload is no OTLP MetricsData: {exc}", frame)
            return
        metrics = [m for r in decoded.resource_metrics for s in r.scope_metrics for m in s.metrics]
        if not metrics and self.offer.is_all:
            findings.broken(KipRule.PAYLOAD, "the push has no metrics although all were requested", frame)
        for rule, reason in self._faults(metrics):
            findings.broken(rule, reason, frame)

    def _faults(self, metrics: list[Any]) -> Iterator[tuple[KipRule, str]]:
        for metric in metrics:
            self._findings.observed(KipRule.REQUESTED_METRICS)
            if not self.offer.is_all and not metric.name.startswith(self.offer.metrics):
                yield (
                    KipRule.REQUESTED_METRICS,
                    f"{metric.name!r} was sent; requested: {', '.join(self.offer.metrics)}",
                )
            kind = metric.WhichOneof("data")
            if not metric.name or kind not in _KINDS:
                yield KipRule.PAYLOAD, f"a metric {metric.name!r} has no name or no data"
                continue
            self.names.add(metric.name)
            points = getattr(metric, kind)
            if not points.data_points or not all(point.time_unix_nano for point in points.data_points):
                yield KipRule.PAYLOAD, f"{metric.name} has no points, or a point without time_unix_nano"
            if hasattr(points, "aggregation_temporality"):
                yield from self._temporality(metric.name, points)

    def _temporality(self, name: str, points: Any) -> Iterator[tuple[KipRule, str]]:
        rule, expected = (KipRule.DELTA, _DELTA) if self.offer.delta else (KipRule.CUMULATIVE, _CUMULATIVE)
        self._findings.observed(rule)
        if points.aggregation_temporality != expected:
            number = points.aggregation_temporality
            sent = AggregationTemporality.Name(number) if number in AggregationTemporality.values() else str(number)
            yield rule, f"{name} is {sent}; asked for was {AggregationTemporality.Name(expected)}"
            return
        for point in points.data_points:
            fault = self._sequence(name, points, point)
            if fault:
                yield rule, fault

    def _sequence(self, name: str, points: Any, point: Any) -> str:
        """Says why a point cannot follow the previous one of its series; "" if it can."""
        key = b"\0".join([name.encode(), *sorted(pair.SerializeToString() for pair in point.attributes)])
        if hasattr(point, "count"):
            value = float(point.count)
        else:
            value = float(point.as_int if point.WhichOneof("value") == "as_int" else point.as_double)
        before, now = self._last.get(key), _Last(point.start_time_unix_nano, point.time_unix_nano, value)
        if before is not None or len(self._last) < _LIMITS.points:
            self._last[key] = now
        if before is None:
            return ""
        if self.offer.delta:
            if not 0 < now.start < before.time:
                return ""
            return f"{name}: a delta begins {(before.time - now.start) / 1e6:.3f} ms before the last ended"
        if getattr(points, "is_monotonic", False) and now.start == before.start and now.value < before.value:
            return f"{name} fell from {before.value:g} to {now.value:g} without a new start time"
        return ""
