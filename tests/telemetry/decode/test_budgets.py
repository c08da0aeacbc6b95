"""A push over its budget is refused before it is parsed, in bounded memory, and other pushes are decoded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from exporters.model import Connection, DropReason, Push
from telemetry.decode.budgets import DecodeError, Limits, OverBudget, check_structure
from telemetry.decode.client_budgets import ClientBudgets
from telemetry.decode.decoder import Decoder, validate_payload
from telemetry.decode.otlp import check, decode
from telemetry.decode.series_cache import KnownSeries
from telemetry.wire.errors import ErrorCode

CONNECTION = Connection("prod", "EXTERNAL", "alice", "10.0.0.7", 50_000, "apache-kafka-java", "4.3.1", 1)
PUSH = Push(CONNECTION, "app-1", bytes(range(16)), 1_795_234_197_430, 7, False, 0, b"")
MAX_BYTES = 16 << 20


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def field(number: int, body: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(body)) + body


def in_metric(number: int, points: bytes) -> bytes:
    """`points`: the message in the fields Gauge (5), Histogram (9), ExponentialHistogram (10)."""
    return field(1, field(2, field(2, field(number, points))))


def array(items: int) -> bytes:
    return field(7, field(1, b"a") + field(2, field(5, field(1, b"") * items)))


MILLIONS = 2_100_000
# Built by the test that uses it: megabytes each.
ATTACKS: dict[str, Callable[[], bytes]] = {
    "points": lambda: in_metric(5, field(1, b"") * MILLIONS),
    "metrics": lambda: field(1, field(2, field(2, b"") * MILLIONS)),
    "resources": lambda: field(1, b"") * MILLIONS,
    "pairs of a resource": lambda: field(1, field(1, field(1, b"") * MILLIONS)),
    "equal keys": lambda: in_metric(5, field(1, field(7, field(1, b"k")) * 1_000_000)),
    "an array of 2.1 M": lambda: in_metric(5, field(1, array(MILLIONS))),
    "arrays of 60,000": lambda: in_metric(5, field(1, array(60_000)) * 2),
    "exemplars": lambda: in_metric(5, field(1, field(5, b"") * MILLIONS)),
    "scalars": lambda: in_metric(5, field(1, b"\x40\x01" * MILLIONS)),
    "unknown fields": lambda: b"\xf8\x7f\x01" * MILLIONS,
    "groups": lambda: b"\x7b\x7c" * MILLIONS,
    "buckets of exponential histograms": lambda: in_metric(10, field(1, field(8, field(2, b"\x01" * MILLIONS)))),
    "buckets of a histogram": lambda: in_metric(9, field(1, field(6, bytes(8) * 500_001))),
    "buckets one by one": lambda: in_metric(9, field(1, (b"\x31" + bytes(8)) * 500_001)),
    "bounds": lambda: in_metric(9, field(1, field(7, bytes(8) * 500_001))),
    "quantiles": lambda: in_metric(11, field(1, field(6, b"") * 500_001)),
}


def resident_kib(name: str) -> int:
    return int(Path("/proc/self/status").read_text().split(f"{name}:")[1].split()[0])


@pytest.mark.parametrize("attack", ATTACKS)
def test_over_budget_payload_is_refused_without_allocation(attack: str) -> None:
    payload = ATTACKS[attack]()
    before_kib = resident_kib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    with pytest.raises(OverBudget):
        decode(payload, PUSH, Limits(), ())
    assert resident_kib("VmHWM") - before_kib < 3 * len(payload) // 1024 + 16_384  # packed buckets are copied once


@pytest.mark.parametrize("attack", ["resources", "pairs of a resource"])
def test_over_budget_payload_is_invalid_on_receipt(attack: str) -> None:
    refused = validate_payload(0, ATTACKS[attack](), max_decompressed_bytes=MAX_BYTES, limits=Limits())
    assert refused is ErrorCode.INVALID_RECORD


def many_series(series: int, attributes: int, chars: int) -> MetricsData:
    """23 kB compressed once took 6.1 GB: the row of every series repeats the resource attributes."""
    data = MetricsData()
    resource_metrics = data.resource_metrics.add()
    for n in range(attributes):
        resource_metrics.resource.attributes.add(key=f"k{n}").value.string_value = "v" * chars
    metric = resource_metrics.scope_metrics.add().metrics.add(name="m")
    for n in range(series):
        point = metric.gauge.data_points.add(as_double=1.0)
        point.attributes.add(key="n").value.int_value = n
    return data


def test_resource_attribute_text_counts_per_series() -> None:
    payload = many_series(50_000, 64, 1_000).SerializeToString()
    with pytest.raises(OverBudget, match="text_bytes"):
        decode(payload, PUSH, Limits(), ())
    with pytest.raises(OverBudget, match="text_bytes"):
        check(payload, Limits())


def test_resource_attributes_are_converted_once() -> None:
    decoded = decode(many_series(3, 2, 5).SerializeToString(), PUSH, Limits(), ())
    first, *others = decoded.series.values()
    assert all(series.resource is first.resource for series in others)
    assert decoded.text_bytes == 3 * (2 * (2 + 5) + 2)


def test_long_unit_is_decoded_once_per_metric() -> None:
    data = many_series(2_000, 0, 0)
    data.resource_metrics[0].scope_metrics[0].metrics[0].unit = "u" * (8 << 20)
    data.resource_metrics[0].scope_metrics[0].scope.name = "s" * (4 << 20)
    decoded = decode(data.SerializeToString(), PUSH, Limits(), ())  # takes minutes if it is read for each series
    assert {(len(series.unit), len(series.scope_name)) for series in decoded.series.values()} == {(1024, 1024)}


def test_buckets_per_point_are_limited() -> None:
    for count, refused in ((8_192, False), (8_193, True)):
        payload = in_metric(9, field(1, field(6, bytes(8) * count)))
        expected = ErrorCode.INVALID_RECORD if refused else ErrorCode.NONE
        assert validate_payload(0, payload, max_decompressed_bytes=MAX_BYTES, limits=Limits()) is expected
        if refused:
            with pytest.raises(OverBudget, match="point_buckets"):
                decode(payload, PUSH, Limits(), ())
        else:
            assert decode(payload, PUSH, Limits(), ()).buckets == count


def test_repeated_keys_count_towards_the_attribute_limit() -> None:
    data = MetricsData()
    point = data.resource_metrics.add().scope_metrics.add().metrics.add(name="m").gauge.data_points.add(as_int=1)
    for n, key in enumerate(["same"] * 3 + ["late"]):
        point.attributes.add(key=key).value.int_value = n
    decoded = decode(data.SerializeToString(), PUSH, Limits(attributes=3), ())
    assert [series.attributes for series in decoded.series.values()] == [(("same", "0"),)]


def test_structure_scan_counts_match_protobuf() -> None:
    data = many_series(100, 3, 10)
    payload = data.SerializeToString()
    exact = Limits(points=100, pairs=103, fields=100_000, messages=100_000, items=1)
    check_structure(payload, exact)
    for name in ("points", "pairs"):
        with pytest.raises(OverBudget, match=name):
            check_structure(payload, replace(exact, **{name: getattr(exact, name) - 1}))


@pytest.mark.parametrize(
    "payload",
    [b"\x0a\xff\xff\xff\xff\x0f", b"\x0a" + b"\xff" * 11, b"\x09\x00", b"\x07", field(1, b"\x12\x05\x0a"), b"\x80"],
)
def test_invalid_protobuf_raises_decode_error(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        check_structure(payload, Limits(items=0))
    with pytest.raises(DecodeError):
        decode(payload, PUSH, Limits(), ())


def test_client_budget_applies_per_minute() -> None:
    known = KnownSeries(1 << 26, 3_600_000)
    decoder = Decoder(
        max_decompressed_bytes=MAX_BYTES,
        limits=Limits(),
        known=known,
        max_template_bytes=1 << 20,
        client_budgets=ClientBudgets(points=25, series=15),
    )
    push = replace(PUSH, payload=many_series(10, 0, 0).SerializeToString())
    answers = [decoder.outcome(push) for _ in range(2)]
    assert answers[0][1] is None
    refusal = answers[1][1]
    assert refusal is not None  # the series were not kept, so ten more exceed fifteen
    assert (refusal.reason, answers[1][0].error_code) == (DropReason.OVER_BUDGET, ErrorCode.INVALID_RECORD)
    assert decoder.outcome(replace(push, client_id="another"))[1] is None
    assert decoder.outcome(replace(push, received_at_ms=push.received_at_ms + 60_000))[1] is None
