"""Each OTLP kind and each oddity that clients, or their enemies, send."""

from __future__ import annotations

import math
from collections.abc import Container
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    ExponentialHistogramDataPoint,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    SummaryDataPoint,
)

from exporters.model import Connection, DropReason, Push
from telemetry.decode.budgets import DecodeError, Limits, OverBudget
from telemetry.decode.compression import decompress
from telemetry.decode.otlp import MAX_FUTURE_MS, MAX_PAST_MS, Decoded, decode

VECTORS = Path(__file__).parents[2] / "vectors"
NOW_MS = 1_795_234_197_430
NOW_NS = NOW_MS * 1_000_000
CONNECTION = Connection("prod", "EXTERNAL", "alice", "10.0.0.7", 50_000, "apache-kafka-java", "4.3.1", 1)
PUSH = Push(CONNECTION, "app-1", bytes(range(16)), NOW_MS, 7, False, 0, b"")


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


def decoded(*metrics: Metric, push: Push = PUSH, limits: Limits = Limits(), known: Container[int] = ()) -> Decoded:
    return decode(payload(*metrics, resource=(text("client-rack", "r1"),)), push, limits, known)


def attributes(*pairs: KeyValue, limits: Limits = Limits()) -> dict[str, str]:
    [series] = decoded(gauge(number(as_double=1, attributes=pairs)), limits=limits).series.values()
    return dict(series.attributes)


def test_gauge_and_sum_become_points_and_series() -> None:
    start = NOW_NS - 5_000 * 1_000_000
    found = decoded(
        gauge(number(as_double=2.5), unit="ms"), counter(number(as_int=7, start_time_unix_nano=start), temporality=2)
    )
    points = found.points
    assert points.metric == ["g", "s"]
    assert points.ts_ms == [NOW_MS, NOW_MS]
    assert points.value == [2.5, 7.0]
    assert points.int_value == [None, None]
    assert points.flags == [0, 0]
    assert points.interval_ms == [0, 5_000]
    level, total = (found.series[id_] for id_ in points.series_id)
    assert (level.metric, level.kind, level.temporality, level.monotonic, level.unit) == (
        "g",
        "gauge",
        "unspecified",
        False,
        "ms",
    )
    assert (total.metric, total.kind, total.temporality, total.monotonic, total.unit) == (
        "s",
        "sum",
        "cumulative",
        True,
        "",
    )
    assert level.resource == (("client_rack", "r1"),)
    assert (level.scope_name, level.scope_version) == ("scope", "1.0")


def test_what_was_not_measured_is_never_zero() -> None:
    points = decoded(
        gauge(
            number(as_double=math.nan),
            number(as_double=0.0),
            number(),
            number(as_double=5.0, flags=1),
            number(as_int=0, flags=1),
        )
    ).points
    assert [math.isnan(value) for value in points.value] == [True, False, True, True, True]
    assert points.flags == [0, 0, 1, 1, 1]


def test_integers_stay_exact() -> None:
    values = [2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), -1]
    points = decoded(gauge(*(number(as_int=value) for value in values))).points
    assert points.int_value == [None, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), None]
    assert points.value == [float(value) for value in values]


def test_a_clock_that_is_wrong_makes_no_partition() -> None:
    inside = [NOW_MS - MAX_PAST_MS, NOW_MS + MAX_FUTURE_MS]
    outside_ns = [0, (inside[0] - 1) * 1_000_000, (inside[1] + 1) * 1_000_000, 2**63 + 5, 2**64 - 1]
    found = decoded(
        gauge(*(number(ts_ms * 1_000_000, as_int=1) for ts_ms in inside), *(number(ns, as_int=1) for ns in outside_ns))
    )
    assert found.points.ts_ms == inside + [NOW_MS] * len(outside_ns)
    assert found.clamped_timestamps == len(outside_ns)


def test_the_interval_is_the_clients_own_and_fits_its_column() -> None:
    def interval_ms(start_ns: int, ns: int = NOW_NS) -> int:
        return decoded(counter(number(ns, as_int=1, start_time_unix_nano=start_ns))).points.interval_ms[0]

    assert interval_ms(NOW_NS - 1_999_999) == 1
    assert interval_ms(0) == 0
    assert interval_ms(NOW_NS + 1) == 0
    assert interval_ms(1) == 2**32 - 1
    assert interval_ms(2**63, 2**63 + 60_000_000_000) == 60_000


def test_the_series_is_named_by_who_and_what() -> None:
    def ids(*metrics: Metric, push: Push = PUSH) -> list[int]:
        return decoded(*metrics, push=push).points.series_id

    both = (text("topic", "t"), text("partition", "0"))
    [one] = ids(gauge(number(as_int=1, attributes=both)))
    assert ids(gauge(number(as_int=2, attributes=both[::-1]))) == [one]
    assert one == 14425545219752142001, "ids are stored: they must never change"
    others = [
        ids(gauge(number(as_int=1, attributes=both), name="other")),
        ids(gauge(number(as_int=1, attributes=both[:1]))),
        ids(counter(number(as_int=1, attributes=both))),
        ids(counter(number(as_int=1, attributes=both), temporality=2)),
        ids(gauge(number(as_int=1, attributes=both)), push=replace(PUSH, client_instance_id=bytes(16))),
        ids(gauge(number(as_int=1, attributes=both)), push=replace(PUSH, client_id="app-2")),
        ids(
            gauge(number(as_int=1, attributes=both)),
            push=replace(PUSH, connection=replace(CONNECTION, principal="mallory")),
        ),
        ids(
            gauge(number(as_int=1, attributes=both)), push=replace(PUSH, connection=replace(CONNECTION, cluster="dev"))
        ),
        ids(gauge(number(as_int=1, attributes=[text("topic", 't","partition'), text("x", "0")]))),
    ]
    assert len({one, *(other[0] for other in others)}) == 1 + len(others)


def test_known_series_are_not_described_again() -> None:
    metrics = gauge(number(as_int=1), number(as_int=2, attributes=[text("topic", "t")]))
    everything = decoded(metrics)
    assert len(everything.series) == 2
    rest = decoded(metrics, known={everything.points.series_id[0]})
    assert set(rest.series) == {everything.points.series_id[1]}
    assert rest.points == everything.points


def test_attribute_values_of_any_type_become_text() -> None:
    nested = AnyValue(
        array_value=ArrayValue(
            values=[
                AnyValue(int_value=1),
                AnyValue(double_value=-math.inf),
                AnyValue(),
                AnyValue(kvlist_value=KeyValueList(values=[text("k", 'v"')])),
            ]
        )
    )
    pairs = [
        text("s", "plain"),
        KeyValue(key="i", value=AnyValue(int_value=-(2**63))),
        KeyValue(key="d", value=AnyValue(double_value=1.5)),
        KeyValue(key="nan", value=AnyValue(double_value=math.nan)),
        KeyValue(key="t", value=AnyValue(bool_value=True)),
        KeyValue(key="f", value=AnyValue(bool_value=False)),
        KeyValue(key="b", value=AnyValue(bytes_value=b"\x00\xff")),
        KeyValue(key="a", value=nested),
        KeyValue(key="none"),
    ]
    assert attributes(*pairs) == {
        "s": "plain",
        "i": "-9223372036854775808",
        "d": "1.5",
        "nan": "NaN",
        "t": "true",
        "f": "false",
        "b": "AP8=",
        "a": '[1,"-Infinity",null,{"k":"v\\""}]',
        "none": "",
    }


def test_dialects_meet_and_the_first_spelling_wins() -> None:
    librdkafka = attributes(KeyValue(key="node.id", value=AnyValue(int_value=1)), text("member_id", "m"))
    assert librdkafka == {"node_id": "1", "member_id": "m"}
    assert attributes(text("node_id", "node-1"), text("group_member_id", "m")) == {
        "node_id": "node-1",
        "member_id": "m",
    }
    assert attributes(text("node.id", "first"), text("node-id", "second")) == {"node_id": "first"}


def test_a_payload_cannot_say_who_it_is_from() -> None:
    forged = [text("client_id", "victim"), text("principal", "root"), text("cluster", "other")]
    [series] = decoded(gauge(number(as_int=1, attributes=forged))).series.values()
    assert dict(series.attributes) == {"client_id": "victim", "principal": "root", "cluster": "other"}
    assert not {"client_id", "principal", "cluster", "client_instance_id"} & set(series._fields)


def test_limits_cut_texts_and_attributes_and_refuse_floods() -> None:
    pairs = [text(f"k{n}" + "x" * 50, "v" * 50) for n in range(9)]
    cut = attributes(*pairs, limits=Limits(attributes=3, chars=10))
    assert cut == {f"k{n}xxxxxxxx": "v" * 10 for n in range(3)}
    long_name = decoded(gauge(number(as_int=1), name="n" * 50, unit="u" * 50), limits=Limits(chars=10))
    assert long_name.points.metric == ["n" * 10]
    assert next(iter(long_name.series.values())).unit == "u" * 10
    three = gauge(*(number(as_int=n) for n in range(3)))
    assert len(decoded(three, limits=Limits(points=3)).points.value) == 3
    with pytest.raises(OverBudget):
        decoded(three, gauge(number(as_int=1)), limits=Limits(points=3))


def test_histograms_keep_absent_apart_from_zero() -> None:
    metric = Metric(name="h", unit="ms")
    metric.histogram.aggregation_temporality = 1
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
    exponential.exponential_histogram.aggregation_temporality = 2
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

    found = decoded(exponential, summary)
    first, second = found.histograms
    assert found.dropped == {DropReason.DECODE: 1}
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


def test_a_metric_of_no_known_kind_is_counted() -> None:
    found = decoded(Metric(name="future"), gauge(number(as_int=1)))
    assert found.dropped == {DropReason.UNSUPPORTED_KIND: 1}
    assert found.points.metric == ["g"]


def test_an_unknown_temporality_is_unspecified() -> None:
    found = decoded(counter(number(as_int=1), temporality=99))
    assert next(iter(found.series.values())).temporality == "unspecified"


def test_no_metrics_at_all() -> None:
    assert decode(b"", PUSH, Limits(), ()) == Decoded()


def test_java_and_librdkafka_as_captured() -> None:
    """Payloads of real clients, as they came: zstd, frames without a content size."""

    def read(name: str) -> Decoded:
        data = decompress(4, (VECTORS / f"{name}.zst").read_bytes(), max_bytes=1 << 20)
        return decode(data, PUSH, Limits(), ())

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


@given(data=st.binary(max_size=200), at=st.integers(0, 3_000), seed=st.sampled_from(["java-4.3.1-producer", ""]))
@settings(max_examples=200, deadline=None)
def test_damaged_payloads_are_refused_or_read_and_nothing_else(data: bytes, at: int, seed: str) -> None:
    whole = decompress(4, (VECTORS / f"{seed}.zst").read_bytes(), max_bytes=1 << 20) if seed else b""
    with suppress(DecodeError, OverBudget):
        found = decode(whole[:at] + data + whole[at + len(data) :], PUSH, Limits(), ())
        columns = [getattr(found.points, name) for name in ("metric", "ts_ms", "series_id", "value", "int_value")]
        assert len({len(column) for column in columns}) == 1


def test_nesting_without_end_is_refused() -> None:
    def field(number: int, body: bytes) -> bytes:
        size = len(body)
        return bytes([number << 3 | 2, *([size & 127 | 128, size >> 7] if size > 127 else [size])]) + body

    value = field(1, b"x")
    for _ in range(100):
        value = field(5, field(1, value))  # AnyValue.array_value, ArrayValue.values
    point = field(7, field(1, b"deep") + field(2, value))
    metric = field(5, field(1, point))
    with pytest.raises(DecodeError):
        decode(field(1, field(2, field(2, metric))), PUSH, Limits(), ())
