"""Histograms, summaries and unusual OTLP payloads, including captured and damaged ones."""

from __future__ import annotations

import math

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    ExponentialHistogramDataPoint,
    HistogramDataPoint,
    Metric,
    SummaryDataPoint,
)

from exporters.model import DropReason
from telemetry.decode.bounds import DecodeError, PayloadLimits, decompress
from telemetry.decode.otlp import Decoded, decode
from tests.kit.otlp_payloads import field, in_metric
from tests.telemetry.decode.payloads import NOW_MS, NOW_NS, PUSH, VECTORS, counter, decoded, gauge, number, text


def test_histogram_distinguishes_absent_from_zero() -> None:
    metric = Metric(name="h", unit="ms")
    metric.histogram.aggregation_temporality = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
    start = NOW_NS - 1_000_000_000
    metric.histogram.data_points.extend(
        [
            HistogramDataPoint(
                time_unix_nano=NOW_NS,
                start_time_unix_nano=start,
                count=3,
                sum=0.0,
                min=0.0,
                bucket_counts=[1, 2],
                explicit_bounds=[5.0],
                attributes=[text("topic", "t")],
            ),
            HistogramDataPoint(time_unix_nano=NOW_NS, flags=1),
        ]
    )
    full, empty = decoded(metric).histograms
    assert (full.metric, full.kind, full.temporality, full.unit) == ("h", "histogram", "delta", "ms")
    assert (full.ts_ms, full.interval_ms, full.flags, empty.flags) == (NOW_MS, 1_000, 0, 1)
    assert full.attributes == (("topic", "t"),)
    assert full.resource == (("client_rack", "r1"),)
    assert full.series_id != empty.series_id
    seen = full.distribution
    assert (seen.count, seen.sum, seen.min, seen.max) == (3, 0.0, 0.0, None)
    assert (list(seen.bounds), list(seen.bucket_counts)) == ([5.0], [1, 2])
    assert (empty.distribution.count, empty.distribution.sum, empty.distribution.min) == (0, None, None)


def test_exponential_histograms_and_summaries() -> None:
    exponential, summary = Metric(name="e"), Metric(name="q")
    exponential.exponential_histogram.aggregation_temporality = (
        AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    )
    good = ExponentialHistogramDataPoint(
        time_unix_nano=NOW_NS, count=2**64 - 1, scale=-3, zero_count=4, zero_threshold=0.5, max=9.0
    )
    good.positive.offset, good.negative.offset = -2, 3
    good.positive.bucket_counts.extend([1, 0, 2])
    good.negative.bucket_counts.append(5)
    absurd = ExponentialHistogramDataPoint(time_unix_nano=NOW_NS, scale=1_000)
    exponential.exponential_histogram.data_points.extend([good, absurd])
    point = SummaryDataPoint(time_unix_nano=NOW_NS, count=2, sum=3.0)
    point.quantile_values.add(quantile=0.5, value=1.5)
    summary.summary.data_points.append(point)

    rows = decoded(exponential, summary)
    first, second = rows.histograms
    assert rows.dropped == {DropReason.DECODE: 1}
    assert (first.kind, first.temporality, second.kind, second.temporality) == (
        "exp_histogram",
        "cumulative",
        "summary",
        "unspecified",
    )
    seen = first.distribution
    assert (seen.count, seen.sum, seen.min, seen.max) == (2**64 - 1, None, None, 9.0)
    assert (seen.scale, seen.zero_count, seen.zero_threshold) == (-3, 4, 0.5)
    assert (seen.pos_offset, list(seen.pos_counts), seen.neg_offset, list(seen.neg_counts)) == (-2, [1, 0, 2], 3, [5])
    assert (second.distribution.count, second.distribution.sum, second.distribution.quantiles) == (2, 3.0, [(0.5, 1.5)])


def test_metric_of_unknown_kind_is_counted_as_dropped() -> None:
    rows = decoded(Metric(name="future"), gauge(number(as_int=1)))
    assert rows.dropped == {DropReason.UNSUPPORTED_KIND: 1}
    assert rows.points.metric == ["g"]


def test_unknown_temporality_is_unspecified() -> None:
    rows = decoded(counter(number(as_int=1), temporality=99))
    assert next(iter(rows.series.values())).temporality == "unspecified"


def test_empty_payload_decodes_to_nothing() -> None:
    assert decode(b"", PUSH, PayloadLimits(), ()) == Decoded()


def test_captured_payloads_of_java_and_librdkafka() -> None:
    """Unmodified payloads of real clients: zstd, frames without a content size."""

    def read(name: str) -> Decoded:
        data = decompress(4, (VECTORS / f"{name}.zst").read_bytes(), max_bytes=1 << 20)
        return decode(data, PUSH, PayloadLimits(), ())

    java = read("java-4.3.1-producer")
    assert len(java.points.metric) == len(java.series) == 108
    assert java.clamped_timestamps == 0
    assert any(math.isnan(value) for value in java.points.value)
    assert "org.apache.kafka.producer.produce.throttle.time.max" in java.points.metric
    assert {dict(series.attributes).get("node_id") for series in java.series.values()} >= {None, "node-1"}
    totals = [series for series in java.series.values() if series.metric.endswith(".total")]
    assert {(series.kind, series.temporality, series.monotonic) for series in totals} == {("sum", "delta", True)}

    producer, consumer = read("librdkafka-2.16.0-producer"), read("librdkafka-2.16.0-consumer")
    assert (len(producer.points.metric), len(consumer.points.metric)) == (12, 17)
    assert {series.scope_version for series in producer.series.values()} == {"2.16.0"}
    nodes = {dict(series.attributes).get("node_id") for series in consumer.series.values()}
    assert nodes == {None, "1", "2", "-1"}
    assert {key for series in consumer.series.values() for key, _ in series.resource} == {"group_id", "member_id"}
    assert all(interval > 0 for interval in producer.points.interval_ms)


def test_excessive_nesting_is_refused() -> None:
    value = field(1, b"x")
    for _ in range(100):
        value = field(5, field(1, value))  # AnyValue.array_value, ArrayValue.values
    with pytest.raises(DecodeError):
        decode(in_metric(5, field(1, field(7, field(1, b"deep") + field(2, value)))), PUSH, PayloadLimits(), ())
