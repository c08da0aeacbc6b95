"""telemetry/receiver/telemetry_requests.py: payloads validated on receipt, internal errors, and invalid bytes."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from functools import partial

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from structlog.testing import capture_logs

from exporters.model import RecordKind
from exporters.spool.writer import SpoolFull
from quota_metrics.kafka.primitives import ProtocolError
from telemetry.decode.bounds import PayloadLimits
from telemetry.decode.decoder import validate_payload
from telemetry.receiver.telemetry_requests import Answer, TelemetryReceiver
from telemetry.wire.apis import GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY
from telemetry.wire.errors import ErrorCode
from tests.kit.otlp_payloads import resource
from tests.telemetry.receiver.sink import ID, MAX_BYTES, PUSH_89, Sink, code_of, push_body

# --- payloads validated on receipt


def validating(validate: Callable[[int, bytes], ErrorCode] | None = None) -> Sink:
    """A receiver that decodes before it acknowledges."""
    sink = Sink()
    decodes = partial(validate_payload, max_decompressed_bytes=1000, limits=PayloadLimits(points=2))
    sink.receiver = TelemetryReceiver(
        sink.rules,
        append=sink.spool.append,
        telemetry_max_bytes=MAX_BYTES,
        validate_payload=decodes if validate is None else validate,
    )
    return sink


def metrics(points: int) -> bytes:
    return MetricsData(resource_metrics=[resource(points)]).SerializeToString()


@pytest.mark.parametrize(
    ("payload", "compression_type", "code"),
    [
        (metrics(2), 0, 0),
        (gzip.compress(metrics(2), mtime=0), 1, 0),
        (b"", 4, 0),
        (b"junk", 4, 87),
        (b"\xffjunk", 0, 87),
        (metrics(3), 0, 87),
        (gzip.compress(bytes(1001), mtime=0), 1, 118),
    ],
)
def test_invalid_payload_is_refused_with_kafkas_code(payload: bytes, compression_type: int, code: int) -> None:
    sink = validating()
    assert code_of(sink.push(payload, compression_type=compression_type, terminating=True)) == code
    assert len(sink.spool.records) == (code == 0)
    assert sink.receiver.counts.pushes == {ErrorCode(code): 1}


def test_refused_terminating_push_does_not_terminate_the_instance() -> None:
    sink = validating()
    assert code_of(sink.push(b"junk", compression_type=4, terminating=True)) == 87
    sink.now_ms += 1000
    assert code_of(sink.push(metrics(1))) == 0


def broken(*_: object, **__: object) -> ErrorCode:
    raise KeyError("a bug")


def test_validator_exception_is_answered_with_89() -> None:
    sink = validating(broken)
    with capture_logs():
        assert sink.push() == Answer(PUSH_89)
    assert sink.spool.records == []


# --- internal errors


@pytest.mark.parametrize("failure", [SpoolFull(), OSError("disk"), KeyError("a bug")])
def test_append_failure_is_answered_with_89(failure: Exception) -> None:
    sink = Sink()
    sink.spool.failure = failure
    with capture_logs():
        assert sink.push(terminating=True) == Answer(PUSH_89)
        assert code_of(sink.get(bytes(15) + b"\x07")) == 89
    assert sink.receiver.counts.pushes == {ErrorCode.THROTTLING_QUOTA_EXCEEDED: 1}
    assert sink.receiver.counts.gets == {ErrorCode.THROTTLING_QUOTA_EXCEEDED: 1}
    assert sink.receiver.counts.accepted_bytes == 0


def test_unstored_terminating_push_and_unrecorded_instance_may_be_retried() -> None:
    sink = Sink()
    sink.spool.failure = SpoolFull()
    assert [code_of(answer) for answer in (sink.get(), sink.push(terminating=True))] == [89, 89]
    sink.spool.failure = None
    assert code_of(sink.push(terminating=True)) == 0
    sink.now_ms += 1000
    assert code_of(sink.get()) == 0
    assert [kind for kind, _ in sink.spool.records] == [RecordKind.PUSH, RecordKind.INSTANCE]


def test_push_lost_by_failed_flush_may_be_retried() -> None:
    sink = Sink()
    assert sink.get().after_flush
    sink.now_ms += 1000
    assert code_of(sink.push(terminating=True)) == 0
    sink.receiver.settled(False)
    assert code_of(sink.push(terminating=True)) == 0
    sink.receiver.settled(True)
    assert code_of(sink.push(terminating=True)) == 42
    sink.now_ms += 1000
    assert sink.get().after_flush  # it is recorded again


def test_repeated_faults_are_logged_with_backoff() -> None:
    sink = Sink()
    sink.spool.failure = KeyError("a bug")
    with capture_logs() as logs:
        for _ in range(100):
            sink.push()
            sink.now_ms += 1000
    assert sink.receiver.counts.faults == 100
    assert [entry["faults"] for entry in logs] == [1, 2, 4, 8, 16, 32, 64]


# --- pushes too large to buffer


def test_oversize_push_is_decided_by_its_header() -> None:
    sink = Sink()
    head = push_body(bytes(1000))[:40]
    codes = [code_of(sink.oversize(head)) for _ in range(2)]
    assert codes == [118, 89]
    stale = push_body(b"", subscription=1234)[:22]
    sink.now_ms += 1000
    assert code_of(sink.oversize(stale)) == 117
    assert sink.spool.records == []
    assert sum(sink.receiver.counts.pushes.values()) == 3


@pytest.mark.interpreted
def test_internal_error_on_oversize_push_is_answered_with_89() -> None:
    sink = Sink()
    sink.receiver.rules.push = broken  # type: ignore[assignment,method-assign] # a fault, injected
    with capture_logs():
        assert code_of(sink.oversize(push_body(b""))) == 89
    assert sink.receiver.counts.faults == 1


def test_oversize_push_with_truncated_header_raises_protocol_error() -> None:
    sink = Sink()
    with pytest.raises(ProtocolError):
        sink.oversize(push_body(b"")[:21])


# --- invalid requests


@pytest.mark.parametrize(
    ("api_key", "body"),
    [
        (GET_TELEMETRY_SUBSCRIPTIONS, b""),
        (GET_TELEMETRY_SUBSCRIPTIONS, ID),
        (GET_TELEMETRY_SUBSCRIPTIONS, ID + b"\x01"),
        (PUSH_TELEMETRY, b""),
        (PUSH_TELEMETRY, push_body(b"payload")[:-1]),
        (PUSH_TELEMETRY, push_body(b"payload")[:-2]),
        (PUSH_TELEMETRY, push_body(b"")[:22] + b"\xff\xff\xff\xff\x0f"),
    ],
)
def test_malformed_body_raises_protocol_error(api_key: int, body: bytes) -> None:
    sink = Sink()
    with pytest.raises(ProtocolError):
        sink.answer(api_key, body)
    assert len(sink.rules.instances) == 0
