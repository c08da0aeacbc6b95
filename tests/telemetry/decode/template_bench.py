"""One payload decoded by template and by otlp.decode."""

from __future__ import annotations

import struct
from dataclasses import replace

import zstandard
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from exporters.model import Push
from telemetry.decode.bounds import PayloadLimits
from telemetry.decode.decoder import DecodedPush, Refusal
from telemetry.decode.otlp import decode
from telemetry.decode.series import KnownSeries, identity
from telemetry.decode.templates import Template, template_of
from telemetry.ingest.arrow_tables import points_table
from tests.telemetry.decode.payloads import NOW_NS, PUSH, VECTORS, new_decoder

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
