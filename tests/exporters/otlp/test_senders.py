"""Both senders against real endpoints: what is retried, what is not, and when (OpenTelemetry Protocol, Failures)."""

import traceback
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from exporters.otlp.grpc_sender import GrpcSender
from exporters.otlp.http_sender import HttpSender, retry_after_s
from exporters.otlp.outcome import (
    MAX_RETRY_AFTER_S,
    EndpointSendError,
    OtlpSender,
    PermanentSendError,
    RetryableSendError,
    SendError,
    TooLargeSendError,
    receiver_text,
)
from headroom.demo.processes import free_ports
from tests.kit.certificates import CertificateAuthority
from tests.kit.otlp_endpoints import ENDPOINTS, Received, Refusal, ServerTls

PROTOBUF = "application/x-protobuf"
REFUSALS = [
    *(
        ("grpc", Refusal(code), RetryableSendError, None)
        for code in ("UNAVAILABLE", "ABORTED", "CANCELLED", "DATA_LOSS", "OUT_OF_RANGE")
    ),
    ("grpc", Refusal("UNAVAILABLE", 7), RetryableSendError, 7),
    ("grpc", Refusal("RESOURCE_EXHAUSTED", 3), RetryableSendError, 3),
    ("grpc", Refusal("RESOURCE_EXHAUSTED"), TooLargeSendError, None),
    ("grpc", Refusal("RESOURCE_EXHAUSTED"), RetryableSendError, None),
    *(("grpc", Refusal(code), PermanentSendError, None) for code in ("INVALID_ARGUMENT", "INTERNAL")),
    *(
        ("grpc", Refusal(code), EndpointSendError, None)
        for code in ("UNAUTHENTICATED", "PERMISSION_DENIED", "UNIMPLEMENTED")
    ),
    ("http", Refusal(429, 3), RetryableSendError, 3),
    ("http", Refusal(503, 86_400), RetryableSendError, MAX_RETRY_AFTER_S),
    *(("http", Refusal(code), RetryableSendError, None) for code in (502, 504)),
    ("http", Refusal(413), TooLargeSendError, None),
    *(("http", Refusal(code), PermanentSendError, None) for code in (400, 422, 500)),
    *(("http", Refusal(code), EndpointSendError, None) for code in (302, 308, 401, 402, 403, 404, 405, 407, 410, 511)),
]


def sender_to(
    protocol: str, address: str, *, compression: str = "none", headers: dict[str, str] | None = None
) -> OtlpSender:
    if protocol == "grpc":
        return GrpcSender(address, tls=None, headers=headers or {}, gzip=compression == "gzip", timeout_s=20)
    url = f"http://{address}/v1/metrics"
    return HttpSender(url, tls_files={}, headers=headers or {}, compression=compression, timeout_s=20)


def request(name_chars: int = 500) -> Any:
    message = ExportMetricsServiceRequest()
    metric = message.resource_metrics.add().scope_metrics.add().metrics.add(name="m" * name_chars)
    metric.gauge.data_points.add(as_double=7)
    return message


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
@pytest.mark.parametrize("protocol", ENDPOINTS)
def test_request_is_sent_with_its_headers(protocol: str, compression: str) -> None:
    received = Received()
    received.answers.append(1)
    with ENDPOINTS[protocol](received) as address:
        sender = sender_to(protocol, address, compression=compression, headers={"Authorization": "Bearer t"})
        assert [sender.send(request()).rejected_data_points for _ in range(2)] == [1, 0]
        sender.close()
    assert received.values() == [7, 7]
    assert received.requests[0] == request()
    assert {headers["authorization"] for headers in received.headers} == {"Bearer t"}


@pytest.mark.parametrize(("protocol", "refusal", "error", "after_s"), REFUSALS)
def test_refusals_follow_the_specification_but_for_those_of_the_endpoint(
    protocol: str, refusal: Refusal, error: type[SendError], after_s: float | None
) -> None:
    received = Received()
    received.answers.append(refusal)
    with ENDPOINTS[protocol](received) as address:
        sender = sender_to(protocol, address)
        with pytest.raises(error) as failed:
            sender.send(request(100_000 if error is TooLargeSendError else 500))
        assert getattr(failed.value, "retry_after_s", None) == after_s
        sender.close()


@pytest.mark.parametrize("protocol", ENDPOINTS)
def test_unreachable_endpoint_raises_retryable_error(protocol: str) -> None:
    [port] = free_ports(1)
    sender = sender_to(protocol, f"127.0.0.1:{port}")
    with pytest.raises(RetryableSendError):
        sender.send(request())
    received = Received()
    with ENDPOINTS[protocol](received, port):
        while not received.requests:  # gRPC waits a moment before it connects again
            try:
                sender.send(request())
            except RetryableSendError:
                continue
    sender.close()
    assert received.values() == [7]


@pytest.mark.parametrize(
    ("code", "body", "content_type", "error"),
    [
        (400, Status(message="bad unit").SerializeToString(), PROTOBUF, "HTTP 400 at /v1/metrics: bad unit"),
        (500, b'{"message": "no {x}"}', "application/json", "HTTP 500 at /v1/metrics: no {x}"),
        (400, b'{"error": 1}', "application/json", 'HTTP 400 at /v1/metrics: {"error": 1}'),
        (503, b"\x1b[2Jbusy\r\n\xff", "text/plain", "HTTP 503 at /v1/metrics: \\x1b[2Jbusy \N{REPLACEMENT CHARACTER}"),
        (404, b"a" * 9_000, "text/html", "HTTP 404 at /v1/metrics: " + "a" * 200),
        (400, b"\n", PROTOBUF, "HTTP 400 at /v1/metrics"),
        ("INTERNAL", b"no\n\x1b[2J" + b"a" * 900, "", "INTERNAL: no \\x1b[2J" + "a" * 190),
    ],
)
def test_the_error_has_what_the_receiver_says(code: str | int, body: bytes, content_type: str, error: str) -> None:
    received = Received()
    received.answers.append(Refusal(code, None, body, content_type))
    protocol = "http" if content_type else "grpc"
    with ENDPOINTS[protocol](received) as address:
        sender = sender_to(protocol, address)
        with pytest.raises(SendError) as failed:
            sender.send(request())
        sender.close()
    assert str(failed.value) == error


@pytest.mark.parametrize(
    ("value", "after_s"),
    [
        ("7", 7),
        ("Sat, 28 Nov 2026 10:00:09 GMT", 9),
        ("Saturday, 28-Nov-26 10:00:09 GMT", 9),
        ("Sat Nov 28 10:00:09 2026", 9),
        ("Sat, 28 Nov 2026 09:59:59 GMT", -1),
        ("Sat, 28 Nov 0001 10:00:00 +9999", None),
        ("soon", None),
        ("", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str, after_s: float | None) -> None:
    assert retry_after_s(value, datetime(2026, 11, 28, 10, tzinfo=UTC)) == after_s


@pytest.mark.parametrize("value", ["secret\n", "secret\udc80", "secret\N{EURO SIGN}"])
@pytest.mark.parametrize("protocol", ENDPOINTS)
def test_a_header_that_cannot_be_sent_ends_no_process_and_is_not_in_the_error(protocol: str, value: str) -> None:
    with ENDPOINTS[protocol](Received()) as address:
        sender = sender_to(protocol, address, headers={"authorization": value})
        with pytest.raises(SendError) as failed:
            sender.send(request())
        sender.close()
    assert "secret" not in "".join(traceback.format_exception(failed.value))


def test_a_secret_that_a_receiver_repeats_is_not_in_the_error() -> None:
    assert receiver_text("no user has Bearer abc.def-ghi", ["Bearer abc.def-ghi", "7"]) == "no user has Bearer ***"


def test_a_proxy_that_otlp_does_not_know_is_passed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    for protocol, serve in ENDPOINTS.items():
        with serve(Received()) as address:
            sender = sender_to(protocol, address)
            assert sender.send(request()).rejected_data_points == 0
            sender.close()


def test_a_connection_on_which_grpc_gets_no_answer_is_left() -> None:
    received, timeout = Received(), Refusal("DEADLINE_EXCEEDED")
    received.answers.extend([0, timeout, timeout, 0, timeout, timeout, Refusal("ABORTED"), timeout, timeout, 0])
    received.answers.extend([timeout, timeout, timeout, 0])
    with ENDPOINTS["grpc"](received) as address:
        sender = sender_to("grpc", address)
        while len(received.requests) < 4:
            with suppress(RetryableSendError):
                sender.send(request())
        sender.close()
    peers = [headers["peer"] for headers in received.headers]
    assert len(set(peers[:3])) == 1
    assert peers[3] != peers[2]


def tls_sender_to(protocol: str, address: str, ca: Path, client: tuple[Path, Path] | None) -> OtlpSender:
    if protocol == "grpc":
        certificate, key = (path.read_bytes() for path in client) if client else (None, None)
        tls = grpc.ssl_channel_credentials(ca.read_bytes(), key, certificate)
        return GrpcSender(address, tls=tls, headers={}, gzip=True, timeout_s=20)
    files = {"ca_certs": str(ca)}
    if client:
        files |= {"cert_file": str(client[0]), "key_file": str(client[1])}
    return HttpSender(f"https://{address}/v1/metrics", tls_files=files, headers={}, compression="gzip", timeout_s=20)


@pytest.mark.parametrize("protocol", ENDPOINTS)
def test_mutual_tls_requires_trusted_certificates_on_both_sides(protocol: str, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    authority, other = CertificateAuthority(tmp_path), CertificateAuthority(tmp_path / "other")
    client = authority.issue("client")
    received = Received()
    with ENDPOINTS[protocol](received, tls=ServerTls(authority.ca, *authority.issue("server"))) as address:
        for ca, certificate in ((authority.ca, None), (authority.ca, other.issue("client")), (other.ca, client)):
            sender = tls_sender_to(protocol, address, ca, certificate)
            with pytest.raises(RetryableSendError):
                sender.send(request())
            sender.close()
        with pytest.raises(RetryableSendError):
            sender_to(protocol, address).send(request())
        assert received.requests == []
        sender = tls_sender_to(protocol, address, authority.ca, client)
        assert sender.send(request()).rejected_data_points == 0
        sender.close()
    assert received.values() == [7]
