"""OTLP payloads, hand-written and captured, and the rows of the decoder for them: by template and by otlp.decode."""

import struct
from collections.abc import Container
from dataclasses import replace
from pathlib import Path
from typing import Any

import zstandard
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, MetricsData, NumberDataPoint

from exporters.model import Connection, Push
from telemetry.decode.bounds import PayloadLimits
from telemetry.decode.decoder import DecodedPush, Decoder, Refusal
from telemetry.decode.otlp import Decoded, decode
from telemetry.decode.series import ClientBudgets, KnownSeries, identity
from telemetry.decode.templates import Template, template_of
from telemetry.ingest.arrow_tables import points_table

VECTORS = Path(__file__).parents[2] / "vectors"
NOW_MS = 1_795_234_197_430
NOW_NS = NOW_MS * 1_000_000
CONNECTION = Connection("prod", "EXTERNAL", "alice", "10.0.0.7", 50_000, "apache-kafka-java", "4.3.1", 1)
PUSH = Push(CONNECTION, "app-1", bytes(range(16)), NOW_MS, 7, False, 0, b"")


def new_decoder(known_series: KnownSeries | None = None, **options: Any) -> Decoder:
    return Decoder(
        known_series=KnownSeries(1 << 26, 3_600_000) if known_series is None else known_series,
        **{
            "max_decompressed_bytes": 1 << 24,
            "limits": PayloadLimits(),
            "max_template_bytes": 1 << 24,
            "client_budgets": ClientBudgets(),
            **options,
        },
    )


def text(key: str, value: str) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(string_value=value))


def number(ts_ns: int = NOW_NS, **fields: Any) -> NumberDataPoint:
    return NumberDataPoint(time_unix_nano=ts_ns, **fields)


def gauge(*points: NumberDataPoint, name: str = "g", unit: str = "") -> Metric:
    metric = Metric(name=name, unit=unit)
    metric.gauge.data_points.extend(points)
    return metric


def counter(*points: NumberDataPoint, temporality: Any = 1, monotonic: bool = True) -> Metric:
    metric = Metric(name="s")
    metric.sum.data_points.extend(points)
    metric.sum.aggregation_temporality = temporality
    metric.sum.is_monotonic = monotonic
    return metric


def payload(*metrics: Metric, resource: tuple[KeyValue, ...] = ()) -> bytes:
    data = MetricsData()
    resource_metrics = data.resource_metrics.add()
    resource_metrics.resource.attributes.extend(resource)
    scope_metrics = resource_metrics.scope_metrics.add()
    scope_metrics.scope.name, scope_metrics.scope.version = "scope", "1.0"
    scope_metrics.metrics.extend(metrics)
    return data.SerializeToString()


def decoded(
    *metrics: Metric, push: Push = PUSH, limits: PayloadLimits = PayloadLimits(), known_ids: Container[int] = ()
) -> Decoded:
    return decode(payload(*metrics, resource=(text("client-rack", "r1"),)), push, limits, known_ids)


def attributes(*pairs: KeyValue, limits: PayloadLimits = PayloadLimits()) -> dict[str, str]:
    [series] = decoded(gauge(number(as_double=1, attributes=pairs)), limits=limits).series.values()
    return dict(series.attributes)


LIMITS = PayloadLimits()
CAPTURED = sorted(VECTORS.glob("*.zst"))
PAYLOADS = [zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes()) for path in CAPTURED]


class Bench:
    """A decoder as the ingester uses it."""

    def __init__(self, limits: PayloadLimits = LIMITS, max_template_bytes: int = 1 << 24) -> None:
        self.known = KnownSeries(1 << 26, 3_600_000)
        self.decoder = new_decoder(self.known, limits=limits, max_template_bytes=max_template_bytes)

    def take(self, push: Push) -> tuple[DecodedPush, Refusal | None]:
        outcome, refusal = self.decoder.outcome(push)
        self.known.add(identity(push), outcome.decoded.series, push.received_at_ms)
        return outcome, refusal

    def matches(self, payload: bytes) -> bool:
        return self.take(replace(PUSH, payload=payload))[0].match is not None


def rows(outcome: DecodedPush) -> list[str]:
    """Sorted, with values as bits because NaN is not equal to itself."""
    points = points_table([outcome])[0].to_pylist()
    return sorted(repr({**row, "value": struct.pack("<d", row["value"])}) for row in points)


def check(bench: Bench, payload: bytes, push: Push = PUSH) -> DecodedPush:
    """Asserts that templates give the rows and errors of otlp.decode."""
    outcome, refusal = bench.take(replace(push, payload=payload))
    try:
        plain = DecodedPush(outcome.push, decode(payload, outcome.push, LIMITS, ()), len(payload), 0)
    except ValueError:
        assert refusal is not None
        return outcome
    assert refusal is None
    assert rows(outcome) == rows(plain)
    assert outcome.points == plain.points
    clamped = points_table([outcome])[2] + outcome.decoded.clamped_timestamps
    assert clamped == plain.decoded.clamped_timestamps
    assert outcome.decoded.histograms == plain.decoded.histograms
    return outcome


def template_for(name: str) -> Template:
    template = template_of(named(name), decode(named(name), PUSH, LIMITS, ()))
    assert template is not None
    return template


def named(name: str) -> bytes:
    message = MetricsData()
    points = message.resource_metrics.add().scope_metrics.add().metrics.add(name=name).gauge.data_points
    points.add(time_unix_nano=NOW_NS, as_double=1.0)
    return message.SerializeToString()
