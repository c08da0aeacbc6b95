"""For any payload, decoding by template gives the rows of otlp.decode, in bounded memory."""

import math
import random
import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, MetricsData, NumberDataPoint

from telemetry.decode.otlp import MAX_FUTURE_MS, MAX_PAST_MS
from telemetry.decode.templates import GATHERABLE_MS
from tests.kit.otlp_payloads import field
from tests.telemetry.decode.payloads import CAPTURED, NOW_MS, NOW_NS, PAYLOADS, PUSH, Bench, check


def renumbered(payload: bytes, rng: random.Random) -> bytes:
    """The same structure with all numbers changed."""
    message = MetricsData.FromString(payload)
    for resource_metrics in message.resource_metrics:
        for scope_metrics in resource_metrics.scope_metrics:
            for metric in scope_metrics.metrics:
                kind = metric.WhichOneof("data")
                for point in getattr(metric, kind).data_points if kind in ("gauge", "sum") else ():
                    renumber(point, rng)
    return message.SerializeToString()


def renumber(point: NumberDataPoint, rng: random.Random) -> None:
    near = NOW_NS + rng.choice((0, 0, -MAX_PAST_MS, MAX_FUTURE_MS)) * 1_000_000 + rng.randrange(-2, 3)
    if point.time_unix_nano:
        point.time_unix_nano = rng.choice((near, rng.getrandbits(64) or 1, 1, 2**64 - 1))
    if point.start_time_unix_nano:
        point.start_time_unix_nano = rng.choice((near - rng.randrange(10**10), rng.getrandbits(64) or 1, 2**64 - 1))
    kind = point.WhichOneof("value")
    if kind == "as_int":
        point.as_int = rng.choice(
            (0, 2**53, -(2**53), 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), rng.getrandbits(62))
        )
    elif kind == "as_double":
        point.as_double = rng.choice((0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, rng.random()))


@pytest.mark.parametrize("payload", PAYLOADS, ids=[path.stem for path in CAPTURED])
def test_captured_payload_is_decoded_by_template_from_the_second_push(payload: bytes) -> None:
    bench, rng = Bench(), random.Random(1)
    assert check(bench, payload).match is None
    for _ in range(20):
        assert check(bench, renumbered(payload, rng)).match is not None


TEXTS = st.text(max_size=6)
ATTRIBUTES = st.dictionaries(TEXTS, st.one_of(TEXTS, st.integers(-5, 5), st.booleans()), max_size=3)


@st.composite
def number_points(draw: st.DrawFn) -> NumberDataPoint:
    point = NumberDataPoint(
        start_time_unix_nano=draw(st.sampled_from((0, NOW_NS - 10**10, 7))),
        time_unix_nano=draw(st.sampled_from((0, NOW_NS, 2**63 + 5))),
        flags=draw(st.sampled_from((0, 1, 2, 256, 257))),
    )
    kind = draw(st.sampled_from(("as_double", "as_int", None)))
    if kind:
        setattr(point, kind, draw(st.integers(-3, 3)))
    for key, value in draw(ATTRIBUTES).items():
        any_value = point.attributes.add(key=key).value
        name = {str: "string_value", bool: "bool_value", int: "int_value"}[type(value)]
        setattr(any_value, name, value)
    for measured in draw(st.lists(st.floats(width=32), max_size=1)):
        point.exemplars.add(as_double=measured, time_unix_nano=NOW_NS)
    return point


@st.composite
def metrics(draw: st.DrawFn) -> Metric:
    metric = Metric(name=draw(TEXTS), unit=draw(TEXTS))
    points = draw(st.lists(number_points(), max_size=4))
    kind = draw(st.sampled_from(("gauge", "gauge", "sum", "sum", "none", "histogram", "summary")))
    if kind == "gauge":
        metric.gauge.data_points.extend(points)
    elif kind == "sum":
        metric.sum.data_points.extend(points)
        metric.sum.aggregation_temporality = draw(st.integers(0, 3))  # type: ignore[assignment]
        metric.sum.is_monotonic = draw(st.booleans())
    elif kind == "histogram":
        metric.histogram.data_points.add(count=1, time_unix_nano=NOW_NS)
    elif kind == "summary":
        metric.summary.SetInParent()
    return metric


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    message = MetricsData()
    for _ in range(draw(st.integers(0, 2))):
        resource_metrics = message.resource_metrics.add()
        for key, value in draw(st.dictionaries(TEXTS, TEXTS, max_size=2)).items():
            resource_metrics.resource.attributes.add(key=key).value.string_value = value
        for _ in range(draw(st.integers(0, 2))):
            scope_metrics = resource_metrics.scope_metrics.add()
            scope_metrics.scope.name = draw(TEXTS)
            scope_metrics.metrics.extend(draw(st.lists(metrics(), max_size=3)))
    return message.SerializeToString()


@given(payload=messages(), seed=st.integers(0, 1 << 32))
def test_random_messages_give_the_same_rows_by_template(payload: bytes, seed: int) -> None:
    bench, rng = Bench(), random.Random(seed)
    first = check(bench, payload)
    plain = first.decoded.points.value and not first.decoded.histograms and not first.decoded.dropped
    for _ in range(3):
        assert bool(check(bench, renumbered(payload, rng)).match) == bool(plain)


def test_non_canonical_fields_are_not_templated() -> None:
    point = NumberDataPoint(time_unix_nano=NOW_NS, as_double=1.5).SerializeToString()
    zero_time = b"\x19" + bytes(8)  # written although it is the default
    for body in (point + point, zero_time + point, point[9:] + point[:9], point + b"\x31" + bytes(8)):
        metric = field(1, b"m") + field(5, field(1, body))
        payload = field(1, field(2, field(2, metric)))
        bench = Bench()
        assert [check(bench, payload).match for _ in range(3)] == [None] * 3


def test_equal_bytes_in_names_and_values_are_not_confused() -> None:
    """A name that contains the bytes of the values, and points with equal values."""
    value = struct.unpack("<d", b"ABCDEFGH")[0]
    time = int.from_bytes(b"ABCDEFGH", "little")
    message = MetricsData()
    scope_metrics = message.resource_metrics.add().scope_metrics.add()
    for name in ("ABCDEFGH", "ABCDEFGHABCDEFGH"):
        points = scope_metrics.metrics.add(name=name, unit="ABCDEFGH").gauge.data_points
        for _ in range(2):
            points.add(time_unix_nano=time, start_time_unix_nano=time, as_double=value)
    bench, payload = Bench(), message.SerializeToString()
    check(bench, payload)
    for seed in range(10):
        assert check(bench, renumbered(payload, random.Random(seed))).match is not None


def test_push_with_implausible_receive_time_uses_no_template() -> None:
    bench = Bench()
    for received_ms in (NOW_MS, GATHERABLE_MS.start, GATHERABLE_MS.stop - 1):
        check(bench, PAYLOADS[0], replace(PUSH, received_at_ms=received_ms))
        assert check(bench, PAYLOADS[0], replace(PUSH, received_at_ms=received_ms)).match is not None
    for received_ms in (0, -1, GATHERABLE_MS.start - 1, GATHERABLE_MS.stop):
        assert check(bench, PAYLOADS[0], replace(PUSH, received_at_ms=received_ms)).match is None
