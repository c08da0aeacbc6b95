"""Each OTLP kind, and unusual or invalid payloads of real and hostile clients, with texts that are no UTF-8."""

import math
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.message import DecodeError as ProtobufError
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    ExponentialHistogramDataPoint,
    HistogramDataPoint,
    Metric,
    MetricsData,
    SummaryDataPoint,
)

from exporters.model import DropReason, Push
from telemetry.decode.bounds import DecodeError, OverBudget, PayloadLimits, decompress
from telemetry.decode.decoder import validate_payload
from telemetry.decode.lenient import METRICS
from telemetry.decode.otlp import MAX_FUTURE_MS, MAX_PAST_MS, Decoded, decode
from telemetry.decode.series import KnownSeries, identity
from telemetry.wire.errors import ErrorCode
from tests.kit.otlp_payloads import field, in_metric
from tests.telemetry.decode.payloads import (
    CONNECTION,
    NOW_MS,
    NOW_NS,
    PUSH,
    VECTORS,
    attributes,
    counter,
    decoded,
    gauge,
    new_decoder,
    number,
    payload,
    text,
)


def test_gauge_and_sum_become_points_and_series() -> None:
    start = NOW_NS - 5_000 * 1_000_000
    rows = decoded(
        gauge(number(as_double=2.5), unit="ms"), counter(number(as_int=7, start_time_unix_nano=start), temporality=2)
    )
    points = rows.points
    assert points.metric == ["g", "s"]
    assert points.ts_ms == [NOW_MS, NOW_MS]
    assert points.value == [2.5, 7.0]
    assert points.int_value == [None, None]
    assert points.flags == [0, 0]
    assert points.interval_ms == [0, 5_000]
    level, total = (rows.series[id_] for id_ in points.series_id)
    assert level[:5] == ("g", "gauge", "unspecified", False, "ms")
    assert total[:5] == ("s", "sum", "cumulative", True, "")
    assert level.resource == (("client_rack", "r1"),)
    assert (level.scope_name, level.scope_version) == ("scope", "1.0")


def test_missing_value_is_nan_not_zero() -> None:
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


def test_out_of_range_timestamp_is_clamped_to_receive_time() -> None:
    inside = [NOW_MS - MAX_PAST_MS, NOW_MS + MAX_FUTURE_MS]
    outside_ns = [0, (inside[0] - 1) * 1_000_000, (inside[1] + 1) * 1_000_000, 2**63 + 5, 2**64 - 1]
    rows = decoded(
        gauge(*(number(ts_ms * 1_000_000, as_int=1) for ts_ms in inside), *(number(ns, as_int=1) for ns in outside_ns))
    )
    assert rows.points.ts_ms == inside + [NOW_MS] * len(outside_ns)
    assert rows.clamped_timestamps == len(outside_ns)


def test_interval_comes_from_client_timestamps_and_is_bounded() -> None:
    def interval_ms(start_ns: int, ns: int = NOW_NS) -> int:
        return decoded(counter(number(ns, as_int=1, start_time_unix_nano=start_ns))).points.interval_ms[0]

    assert interval_ms(NOW_NS - 1_999_999) == 1
    assert interval_ms(0) == 0
    assert interval_ms(NOW_NS + 1) == 0
    assert interval_ms(1) == 2**32 - 1
    assert interval_ms(2**63, 2**63 + 60_000_000_000) == 60_000


def test_series_id_depends_on_identity_metric_and_attributes() -> None:
    def ids(*metrics: Metric, push: Push = PUSH) -> list[int]:
        return decoded(*metrics, push=push).points.series_id

    both = (text("topic", "t"), text("partition", "0"))
    [id_] = ids(gauge(number(as_int=1, attributes=both)))
    assert ids(gauge(number(as_int=2, attributes=both[::-1]))) == [id_]
    assert id_ == 14425545219752142001, "ids are stored: they must never change"
    point = number(as_int=1, attributes=both)
    others = [
        ids(gauge(point, name="other")),
        ids(gauge(number(as_int=1, attributes=both[:1]))),
        ids(counter(point)),
        ids(counter(point, temporality=2)),
        ids(gauge(point), push=replace(PUSH, client_instance_id=bytes(16))),
        ids(gauge(point), push=replace(PUSH, client_id="app-2")),
        ids(gauge(point), push=replace(PUSH, connection=replace(CONNECTION, principal="mallory"))),
        ids(gauge(point), push=replace(PUSH, connection=replace(CONNECTION, cluster="dev"))),
        ids(gauge(number(as_int=1, attributes=[text("topic", 't","partition'), text("x", "0")]))),
    ]
    assert len({id_, *(other[0] for other in others)}) == 1 + len(others)


def test_known_series_are_not_described_again() -> None:
    metrics = gauge(number(as_int=1), number(as_int=2, attributes=[text("topic", "t")]))
    everything = decoded(metrics)
    assert len(everything.series) == 2
    rest = decoded(metrics, known_ids={everything.points.series_id[0]})
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


def test_attribute_dialects_are_normalized_and_first_spelling_wins() -> None:
    librdkafka = attributes(KeyValue(key="node.id", value=AnyValue(int_value=1)), text("member_id", "m"))
    assert librdkafka == {"node_id": "1", "member_id": "m"}
    assert attributes(text("node_id", "node-1"), text("group_member_id", "m")) == {
        "node_id": "node-1",
        "member_id": "m",
    }
    assert attributes(text("node.id", "first"), text("node-id", "second")) == {"node_id": "first"}


def test_payload_attributes_do_not_change_identity() -> None:
    forged = [text("client_id", "victim"), text("principal", "root"), text("cluster", "other")]
    [series] = decoded(gauge(number(as_int=1, attributes=forged))).series.values()
    assert dict(series.attributes) == {"client_id": "victim", "principal": "root", "cluster": "other"}
    assert not {"client_id", "principal", "cluster", "client_instance_id"} & set(series._fields)


def test_limits_truncate_texts_and_refuse_too_many_points() -> None:
    pairs = [text(f"k{n}" + "x" * 50, "v" * 50) for n in range(9)]
    cut = attributes(*pairs, limits=PayloadLimits(attributes=3, chars=10))
    assert cut == {f"k{n}xxxxxxxx": "v" * 10 for n in range(3)}
    long_name = decoded(gauge(number(as_int=1), name="n" * 50, unit="u" * 50), limits=PayloadLimits(chars=10))
    assert long_name.points.metric == ["n" * 10]
    assert next(iter(long_name.series.values())).unit == "u" * 10
    three = gauge(*(number(as_int=n) for n in range(3)))
    assert len(decoded(three, limits=PayloadLimits(points=3)).points.value) == 3
    with pytest.raises(OverBudget):
        decoded(three, gauge(number(as_int=1)), limits=PayloadLimits(points=3))


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


BAD, REPLACED = b"Z\xfcrich", "Z\N{REPLACEMENT CHARACTER}rich"
STANDING = "ZZrich"  # as long as BAD


def with_bad_text(place: str, value: float = 7.0) -> bytes:
    """A push with one text that is no UTF-8."""
    at = {name: STANDING if name == place else "good" for name in ("rack", "key", "metric", "unit", "of point")}
    point = number(as_double=value, attributes=[text("topic", at["of point"])], start_time_unix_nano=NOW_NS - 1)
    return payload(
        gauge(point, name=at["metric"], unit=at["unit"]),
        resource=(text("client_rack", at["rack"]), text(at["key"], "v")),
    ).replace(STANDING.encode(), BAD)


@pytest.mark.parametrize("place", ["rack", "key", "metric", "unit", "of point"])
def test_push_with_a_text_that_is_no_utf_8_is_kept(place: str) -> None:
    body = with_bad_text(place)
    with pytest.raises(ProtobufError):
        MetricsData.FromString(body)
    assert validate_payload(0, body, max_decompressed_bytes=1 << 20, limits=PayloadLimits()) is ErrorCode.NONE
    outcome, refusal = new_decoder().outcome(replace(PUSH, payload=body))
    assert refusal is None
    assert outcome.has_replaced_texts
    assert outcome.decoded.points.value == [7.0]
    [series] = outcome.decoded.series.values()
    stored = [series.metric, series.unit, *sum(series.attributes + series.resource, ())]
    assert [text for text in stored if "rich" in text] == [REPLACED]


def test_later_pushes_of_the_structure_use_a_template_and_are_counted() -> None:
    known_series = KnownSeries(1 << 20, 3_600_000)
    reader = new_decoder(known_series)
    known_series.begin(NOW_MS)
    first, _ = reader.outcome(replace(PUSH, payload=with_bad_text("rack")))
    assert first.match is None
    known_series.add(identity(PUSH), first.decoded.series, NOW_MS)
    known_series.keep()
    later, refusal = reader.outcome(replace(PUSH, payload=with_bad_text("rack", 9.0)))
    assert refusal is None
    assert later.match is not None
    assert later.has_replaced_texts
    assert later.match.template.names == ("good",)
    good, _ = reader.outcome(replace(PUSH, payload=with_bad_text("")))
    assert not good.has_replaced_texts


def test_what_is_no_message_with_any_texts_is_refused() -> None:
    for body in (b"\xff", with_bad_text("rack")[:-1], with_bad_text("rack") + b"\x0a\x05ab"):
        code = validate_payload(0, body, max_decompressed_bytes=1 << 20, limits=PayloadLimits())
        assert code is ErrorCode.INVALID_RECORD
        _, refusal = new_decoder().outcome(replace(PUSH, payload=body))
        assert refusal is not None


@st.composite
def messages(draw: Any) -> Any:
    """MetricsData with bytes where its texts are."""
    raw = st.one_of(st.binary(max_size=12), st.text(max_size=8).map(str.encode))
    data: Any = METRICS.with_bytes()
    for _ in range(draw(st.integers(1, 3))):
        resource_metrics = data.resource_metrics.add(schema_url=draw(raw))
        value = resource_metrics.resource.attributes.add(key=draw(raw)).value
        for _ in range(draw(st.integers(0, 3))):
            value = value.kvlist_value.values.add(key=draw(raw)).value
        value.string_value = draw(raw)
        resource_metrics.resource.attributes.add(key=b"bytes").value.bytes_value = draw(raw)
        metric = resource_metrics.scope_metrics.add().metrics.add(name=draw(raw), unit=draw(raw))
        metric.sum.data_points.add(as_int=1).exemplars.add().filtered_attributes.add(key=draw(raw))
    return data


def as_text(message: Any, other: Any) -> None:
    """Whether two messages are equal but for texts, which the first has as Python decodes the other's bytes."""
    fields = message.ListFields()
    assert [member.full_name for member, _ in fields] == [member.full_name for member, _ in other.ListFields()]
    for (member, value), (_, raw) in zip(fields, other.ListFields(), strict=True):
        if member.message_type is None:
            assert value == (raw.decode("utf-8", "replace") if isinstance(value, str) else raw)
            continue
        pairs = [(value, raw)] if hasattr(value, "ListFields") else zip(value, raw, strict=True)
        for part, raw_part in pairs:
            as_text(part, raw_part)


@given(messages())
def test_only_texts_differ_from_what_was_sent(raw: Any) -> None:
    body = raw.SerializeToString()
    read = METRICS.read(body)
    as_text(read.message, raw)
    try:
        assert MetricsData.FromString(body) == read.message
    except ProtobufError:
        assert read.replaced
    else:
        assert not read.replaced
