"""A push over its budget is refused before it is parsed, in bounded memory, and other pushes are decoded.

Then every codec of Kafka: valid, truncated, with trailing bytes, and as a decompression bomb.
"""

import gzip
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from exporters.model import DropReason
from telemetry.decode.bounds import (
    DecodeError,
    DecompressError,
    OverBudget,
    PayloadLimits,
    TooLarge,
    check_structure,
    decompress,
)
from telemetry.decode.decoder import validate_payload
from telemetry.decode.otlp import check, decode
from telemetry.decode.series import ClientBudgets
from telemetry.wire.errors import ErrorCode
from tests.kit.memory import resident_kib
from tests.kit.otlp_payloads import array, field, in_metric, many_series
from tests.telemetry.decode.payloads import PUSH, new_decoder

MAX_BYTES = 16 << 20
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


@pytest.mark.parametrize("attack", ATTACKS)
def test_over_budget_payload_is_refused_without_allocation(attack: str) -> None:
    payload = ATTACKS[attack]()
    before_kib = resident_kib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    with pytest.raises(OverBudget):
        decode(payload, PUSH, PayloadLimits(), ())
    assert resident_kib("VmHWM") - before_kib < 3 * len(payload) // 1024 + 16_384  # packed buckets are copied once


@pytest.mark.parametrize("attack", ["resources", "pairs of a resource"])
def test_over_budget_payload_is_invalid_on_receipt(attack: str) -> None:
    refused = validate_payload(0, ATTACKS[attack](), max_decompressed_bytes=MAX_BYTES, limits=PayloadLimits())
    assert refused is ErrorCode.INVALID_RECORD


def test_resource_attribute_text_counts_per_series() -> None:
    payload = many_series(50_000, 64, 1_000).SerializeToString()
    with pytest.raises(OverBudget, match="text_bytes"):
        decode(payload, PUSH, PayloadLimits(), ())
    with pytest.raises(OverBudget, match="text_bytes"):
        check(payload, PayloadLimits())


def test_long_unit_is_decoded_once_per_metric() -> None:
    data = many_series(2_000, 0, 0)
    data.resource_metrics[0].scope_metrics[0].metrics[0].unit = "u" * (8 << 20)
    data.resource_metrics[0].scope_metrics[0].scope.name = "s" * (4 << 20)
    decoded = decode(data.SerializeToString(), PUSH, PayloadLimits(), ())  # takes minutes if it is read for each series
    assert {(len(series.unit), len(series.scope_name)) for series in decoded.series.values()} == {(1024, 1024)}


def test_buckets_per_point_are_limited() -> None:
    most, more = (in_metric(9, field(1, field(6, bytes(8) * count))) for count in (8_192, 8_193))
    assert decode(most, PUSH, PayloadLimits(), ()).buckets == 8_192
    with pytest.raises(OverBudget, match="point_buckets"):
        decode(more, PUSH, PayloadLimits(), ())
    for payload, code in ((most, ErrorCode.NONE), (more, ErrorCode.INVALID_RECORD)):
        assert validate_payload(0, payload, max_decompressed_bytes=MAX_BYTES, limits=PayloadLimits()) is code


def test_repeated_keys_count_towards_the_attribute_limit() -> None:
    data = MetricsData()
    point = data.resource_metrics.add().scope_metrics.add().metrics.add(name="m").gauge.data_points.add(as_int=1)
    for n, key in enumerate(["same"] * 3 + ["late"]):
        point.attributes.add(key=key).value.int_value = n
    decoded = decode(data.SerializeToString(), PUSH, PayloadLimits(attributes=3), ())
    assert [series.attributes for series in decoded.series.values()] == [(("same", "0"),)]


def test_structure_scan_counts_match_protobuf() -> None:
    data = many_series(100, 3, 10)
    payload = data.SerializeToString()
    exact = PayloadLimits(points=100, pairs=103, fields=100_000, messages=100_000, items=1)
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
        check_structure(payload, PayloadLimits(items=0))
    with pytest.raises(DecodeError):
        decode(payload, PUSH, PayloadLimits(), ())


def test_client_budget_applies_per_minute() -> None:
    decoder = new_decoder(client_budgets=ClientBudgets(points=25, series=15))
    push = replace(PUSH, payload=many_series(10, 0, 0).SerializeToString())
    answers = [decoder.outcome(push) for _ in range(2)]
    assert answers[0][1] is None
    refusal = answers[1][1]
    assert refusal is not None  # the series were not kept, so ten more exceed fifteen
    assert (refusal.reason, answers[1][0].error_code) == (DropReason.OVER_BUDGET, ErrorCode.INVALID_RECORD)
    assert decoder.outcome(replace(push, client_id="another"))[1] is None
    assert decoder.outcome(replace(push, received_at_ms=push.received_at_ms + 60_000))[1] is None


def test_points_of_a_push_are_bounded_by_its_bytes_on_the_wire() -> None:
    """50,000 points in 236 bytes of zstd took the worker as long as 500 honest pushes."""
    data = MetricsData()
    scope = data.resource_metrics.add().scope_metrics.add()
    metric = scope.metrics.add(name="m")
    for _ in range(50_000):
        metric.gauge.data_points.add()
    bomb = zstandard.compress(data.SerializeToString())
    assert len(bomb) < 300
    limits = PayloadLimits()
    assert limits.points_of_push(len(bomb)) == 500 + 2 * len(bomb)
    decoder = new_decoder()
    for _ in range(2):
        outcome, refusal = decoder.outcome(replace(PUSH, compression_type=4, payload=bomb))
        assert refusal is not None and refusal.reason is DropReason.OVER_BUDGET
        assert f"more than {500 + 2 * len(bomb)} points" in refusal.cause
        assert outcome.points == 0
    code = validate_payload(4, bomb, max_decompressed_bytes=MAX_BYTES, limits=limits)
    assert code is ErrorCode.INVALID_RECORD


def test_structure_of_another_client_does_not_lift_the_bound() -> None:
    """The same payload, sent uncompressed by one client, makes a template that the compressed one matches."""
    data = MetricsData()
    metric = data.resource_metrics.add().scope_metrics.add().metrics.add(name="m")
    for n in range(2_000):
        metric.gauge.data_points.add(as_int=n, time_unix_nano=PUSH.received_at_ms * 10**6)
    plain = data.SerializeToString()
    decoder = new_decoder()
    assert decoder.outcome(replace(PUSH, compression_type=0, payload=plain))[1] is None
    smaller = MetricsData()
    smaller.CopyFrom(data)
    for point in smaller.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points:
        point.as_int = 7
    packed = zstandard.compress(smaller.SerializeToString())
    assert len(packed) < 1_000
    _, refusal = decoder.outcome(replace(PUSH, compression_type=4, payload=packed))
    assert refusal is not None and refusal.reason is DropReason.OVER_BUDGET


def test_payer_has_a_budget_that_new_instance_ids_do_not_renew() -> None:
    budgets = ClientBudgets(points=100, series=10)
    alice = replace(PUSH, connection=replace(PUSH.connection, principal="alice"))
    for n in range(30):
        budgets.charge(b"alice-%d" % n, alice, 100, 0)
    with pytest.raises(OverBudget, match="more than 3000 points of one payer in a minute"):
        budgets.charge(b"alice-31", alice, 1, 0)
    bob = replace(alice, connection=replace(PUSH.connection, principal="bob"))
    budgets.charge(b"bob-1", bob, 100, 0)
    for n in range(100_000):  # many more clients than are counted
        budgets.charge(b"%d" % n, bob, 0, 0)
    with pytest.raises(OverBudget, match="payer"):
        budgets.charge(b"alice-32", alice, 1, 0)
    with pytest.raises(OverBudget, match="client"):
        budgets.charge(b"alice-0", replace(alice, received_at_ms=alice.received_at_ms), 101, 0)
    budgets.charge(b"alice-31", replace(alice, received_at_ms=alice.received_at_ms + 60_000), 100, 0)


MIB = 1 << 20
NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)


def xerial(data: bytes, block_bytes: int = 32 * 1024) -> bytes:
    """As org.xerial.snappy.SnappyOutputStream writes it."""
    blocks = [
        bytes(cramjam.snappy.compress_raw(data[at : at + block_bytes])) for at in range(0, len(data), block_bytes)
    ]
    return XERIAL_HEADER + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def raw_snappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def zstd_with_size(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def zstd_without_size(data: bytes) -> bytes:
    """As librdkafka and Java's ZstdOutputStream stream it."""
    stream = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    return stream.compress(data) + stream.flush()


def zstd_two_frames(data: bytes) -> bytes:
    half = len(data) // 2
    return zstd_without_size(data[:half]) + zstd_with_size(data[half:])


def gzip_two_members(data: bytes) -> bytes:
    half = len(data) // 2
    return gzip.compress(data[:half]) + gzip.compress(data[half:])


def gzip_stored(data: bytes) -> bytes:
    """librdkafka's level 0: stored blocks."""
    return gzip.compress(data, 0)


CODECS: list[tuple[int, Callable[[bytes], bytes]]] = [
    (NONE, bytes),
    (GZIP, gzip.compress),
    (GZIP, gzip_stored),
    (GZIP, gzip_two_members),
    (SNAPPY, raw_snappy),
    (SNAPPY, xerial),
    (LZ4, lz4.frame.compress),
    (ZSTD, zstd_with_size),
    (ZSTD, zstd_without_size),
    (ZSTD, zstd_two_frames),
]
COMPRESSED = CODECS[1:]
each_codec = pytest.mark.parametrize(("codec", "compress"), CODECS, ids=lambda v: getattr(v, "__name__", ""))
each_compressed = pytest.mark.parametrize(("codec", "compress"), COMPRESSED, ids=lambda v: getattr(v, "__name__", ""))


@each_codec
@given(data=st.binary(max_size=2000) | st.integers(1, 200_000).map(bytes))
@settings(max_examples=25, deadline=None)
def test_round_trip_up_to_the_limit_and_not_above(codec: int, compress: Callable[[bytes], bytes], data: bytes) -> None:
    assert decompress(codec, compress(data), max_bytes=len(data)) == data
    if data:
        with pytest.raises(TooLarge):
            decompress(codec, compress(data), max_bytes=len(data) - 1)


@each_compressed
def test_truncated_and_trailing_data_are_refused(codec: int, compress: Callable[[bytes], bytes]) -> None:
    data = b"org.apache.kafka.producer.produce.throttle.time.max" * 30
    whole = compress(data)
    half = data[: len(data) // 2]
    # A first frame alone; no block.
    sound = {len(gzip.compress(half)), len(zstd_without_size(half)), len(XERIAL_HEADER)}
    truncated = [whole[:cut] for cut in set(range(len(whole))) - sound]
    for bad in (*truncated, whole + b"\0", whole + b"rubbish behind it"):
        with pytest.raises(DecompressError):
            decompress(codec, bad, max_bytes=MIB)


def zstd_run_lengths(nbytes: int) -> bytes:
    """The densest bomb of zstd: 4 bytes a block of 128 KiB, size not stated."""
    blocks = nbytes // (128 * 1024)
    head = b"\x28\xb5\x2f\xfd\x00\x58"  # magic; no size, no checksum; window of 2 MiB
    return head + b"".join(
        ((128 * 1024) << 3 | 1 << 1 | (n == blocks - 1)).to_bytes(3, "little") + b"\0" for n in range(blocks)
    )


def snappy_liar(nbytes: int) -> bytes:
    """States a size and contains nothing."""
    return bytes(cramjam.snappy.compress_raw(bytes(nbytes)))[:6]


def zeros(compress: Callable[[bytes], bytes]) -> Callable[[int], bytes]:
    def bomb(nbytes: int) -> bytes:
        return compress(bytes(nbytes))

    bomb.__name__ = compress.__name__
    return bomb


BOMBS: list[tuple[int, Callable[[int], bytes]]] = [
    *[(codec, zeros(compress)) for codec, compress in COMPRESSED if compress is not gzip_stored],
    (ZSTD, zstd_run_lengths),
    (SNAPPY, snappy_liar),
]


@pytest.mark.parametrize(("codec", "make"), BOMBS, ids=lambda v: getattr(v, "__name__", ""))
def test_bomb_is_refused_within_memory_bounds(codec: int, make: Callable[[int], bytes]) -> None:
    bomb = make(200 * MIB)
    tracemalloc.start()
    with pytest.raises(TooLarge):
        decompress(codec, bomb, max_bytes=MIB)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < len(bomb) + 4 * MIB


def test_excessive_frame_count_is_refused() -> None:
    for codec, empty in ((GZIP, gzip.compress(b"")), (LZ4, lz4.frame.compress(b"")), (ZSTD, zstd_with_size(b""))):
        with pytest.raises(DecompressError, match="frames"):
            decompress(codec, empty * 20_000, max_bytes=MIB)


def test_corrupt_data_and_unknown_codecs_are_refused() -> None:
    for codec in range(1, 5):
        for junk in (b"", b"\xff" * 40, b"{json}"):
            with pytest.raises(DecompressError):
                decompress(codec, junk, max_bytes=MIB)
    for codec in (-1, 5, 127):
        with pytest.raises(DecompressError, match="no codec"):
            decompress(codec, b"", max_bytes=MIB)
    with pytest.raises(DecompressError):  # zlib, not gzip
        decompress(GZIP, zlib.compress(b"metrics"), max_bytes=MIB)
    with pytest.raises(DecompressError):
        decompress(SNAPPY, XERIAL_HEADER + struct.pack(">i", -1) + b"x", max_bytes=MIB)
