"""The OTLP receivers over real sockets: OpenTelemetry's own exporters, authorization, and hostile callers."""

import asyncio
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest
import zstandard
from google.protobuf import json_format
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from telemetry.receiver import otlp_receiver
from telemetry.receiver.otlp_grpc import SERVICE
from telemetry.subscriptions.payer_budgets import PayerLimits, Payers
from tests.kit.grpc_servers import in_loop, until
from tests.kit.otlp_payloads import field, resource
from tests.kit.otlp_receivers import BEARER, EXPORTERS, MAX_BODY_BYTES, MAX_DECOMPRESSED_BYTES, OpenOtlp, opened, send

REQUEST = ExportMetricsServiceRequest(resource_metrics=[resource(3, client_id="app")])
BODY = REQUEST.SerializeToString()
PROTOBUF = {"content-type": "application/x-protobuf"}


async def post(receivers: OpenOtlp, body: Any = BODY, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with httpx.AsyncClient() as client:
        return await client.post(f"http://{receivers.http}/v1/metrics", content=body, headers=PROTOBUF | named)


async def export(receivers: OpenOtlp, body: bytes = BODY, **metadata: str) -> bytes:
    async with grpc.aio.insecure_channel(receivers.grpc) as channel:
        call = channel.unary_unary(f"/{SERVICE}/Export")
        answer: bytes = await call(body, metadata=list(metadata.items()), timeout=30)
        return answer


async def refused(receivers: OpenOtlp, body: bytes = BODY, **metadata: str) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as reported:
        await export(receivers, body, **metadata)
    return reported.value


@pytest.mark.parametrize("transport", EXPORTERS)
@pytest.mark.parametrize("packed", [False, True])
@in_loop
async def test_opentelemetry_exporters_reach_the_spool(tmp_path: Path, transport: str, packed: bool) -> None:
    async with opened(tmp_path) as receivers:
        exporter = EXPORTERS[transport](getattr(receivers, transport), BEARER, gzip=packed)
        assert await send(exporter, {"client_id": "app", "principal": "alice"})
        (push,) = receivers.pushes()
        assert (push.client_id, push.connection.principal) == ("app", "alice")
        assert push.connection.listener == f"OTLP_{transport.upper()}"
        metrics = MetricsData.FromString(push.payload).resource_metrics[0].scope_metrics[0].metrics
        assert {metric.name for metric in metrics} == {"sent", "lag", "latency"}
        assert receivers.receiver.requests == {(f"otlp_{transport}", "accepted"): 1}
        assert receivers.receiver.points == 3


@pytest.mark.parametrize("transport", EXPORTERS)
@in_loop
async def test_sender_without_token_is_claimed_or_refused(tmp_path: Path, transport: str) -> None:
    async with opened(tmp_path / "open") as receivers:
        assert await send(EXPORTERS[transport](getattr(receivers, transport), {}), {"principal": "alice"})
        assert receivers.pushes()[0].connection.principal == "claimed:alice"
    async with opened(tmp_path / "closed", direct=False) as receivers:
        assert not await send(EXPORTERS[transport](getattr(receivers, transport), {}), {"principal": "alice"})
        assert receivers.pushes() == []


@pytest.mark.parametrize("transport", EXPORTERS)
@in_loop
async def test_exporter_retries_when_the_spool_is_full(tmp_path: Path, transport: str) -> None:
    """OpenTelemetry's exporter waits for the requested time, retries, and everything is stored once."""
    async with opened(tmp_path, max_bytes=10) as receivers:
        exporter = EXPORTERS[transport](getattr(receivers, transport), BEARER)
        sending = asyncio.create_task(send(exporter, {"client_id": "app"}))
        await until(lambda: bool(receivers.receiver.requests))
        receivers.writer._max_bytes = 1 << 20
        assert await sending
        assert len(receivers.pushes()) == 1
        assert receivers.receiver.requests == {(f"otlp_{transport}", "busy"): 1, (f"otlp_{transport}", "accepted"): 1}


@in_loop
async def test_full_and_failing_spool_are_retryable(tmp_path: Path) -> None:
    async with opened(tmp_path, max_bytes=10) as receivers:
        answer = await post(receivers)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert Status.FromString(answer.content).message == "the spool is full"
        for calls in (0, 100):
            receivers._grpc._open = calls  # as while as many are served
            error = await refused(receivers)
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert error.details() == ("too many calls at once" if calls else "the spool is full")
            details = Status.FromString(dict(error.trailing_metadata())["grpc-status-details-bin"])
            retry = RetryInfo()
            assert details.details[0].Unpack(retry)
            assert retry.retry_delay.seconds == 5
        receivers.writer._max_bytes = 1 << 20
        receivers.flush_fails = True
        assert (await post(receivers)).status_code == 503
        receivers.writer._queue.clear()


@in_loop
async def test_address_over_its_budget_is_asked_to_retry_and_trusted_senders_are_not(tmp_path: Path) -> None:
    async with opened(tmp_path) as receivers:
        receivers.payers = Payers(PayerLimits(requests=0.2))  # two at once
        untrusted = [(await post(receivers)).status_code for _ in range(4)]
        assert untrusted == [200, 200, 503, 503]
        assert (await refused(receivers)).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert receivers.payers.worst(1)[0].payer == "127.0.0.1"
        assert [(await post(receivers, **BEARER)).status_code for _ in range(4)] == [200] * 4
        assert len(receivers.pushes()) == 6


@in_loop
async def test_request_is_queued_completely_or_not_at_all(tmp_path: Path) -> None:
    clients = ExportMetricsServiceRequest(resource_metrics=[resource(3, client_id=f"app-{n}") for n in range(10)])
    async with opened(tmp_path, max_bytes=2_000) as receivers:
        assert (await post(receivers, clients.SerializeToString())).status_code == 503
        assert receivers.writer._queue == []
        assert (await post(receivers)).status_code == 200


@pytest.mark.parametrize("encoding", ["identity", "gzip", "zstd"])
@pytest.mark.parametrize("as_json", [False, True])
@in_loop
async def test_http_accepts_protobuf_and_json_in_each_encoding(tmp_path: Path, encoding: str, as_json: bool) -> None:
    body = json_format.MessageToJson(REQUEST).encode() if as_json else BODY
    packs: dict[str, Callable[[bytes], bytes]] = {"identity": bytes, "gzip": gzip.compress, "zstd": zstandard.compress}
    async with opened(tmp_path) as receivers:
        content_type = "application/json; charset=utf-8" if as_json else "application/x-protobuf"
        answer = await post(receivers, packs[encoding](body), content_type=content_type, content_encoding=encoding)
        assert (answer.status_code, answer.content) == (200, b"{}" if as_json else b"")
        assert answer.headers["content-type"].startswith(content_type.partition(";")[0])
        assert [push.client_id for push in receivers.pushes()] == ["app"]


@pytest.mark.parametrize("transport", EXPORTERS)
@in_loop
async def test_senders_of_a_request_do_not_suffer_from_what_one_of_them_sends(tmp_path: Path, transport: str) -> None:
    latin = ExportMetricsServiceRequest(resource_metrics=[resource(3, client_id="latin", client_rack="ZZrich")])
    body = BODY + latin.SerializeToString().replace(b"ZZrich", b"Z\xfcrich") + field(1, field(2, b"\x0a\x05a"))
    async with opened(tmp_path) as receivers:
        answer = await export(receivers, body) if transport == "grpc" else (await post(receivers, body)).content
        pushes = {push.client_id: push.payload for push in receivers.pushes()}
        counts = receivers.receiver
        assert (counts.points, counts.rejected_points, counts.replaced_texts) == (6, 1, 1)
    partial = ExportMetricsServiceResponse.FromString(answer).partial_success
    assert (partial.rejected_data_points, partial.error_message) == (1, "1 data points that cannot be parsed")
    assert pushes.keys() == {"app", "latin"}
    [data] = MetricsData.FromString(pushes["latin"]).resource_metrics
    assert "Z\N{REPLACEMENT CHARACTER}rich" in {pair.value.string_value for pair in data.resource.attributes}


BOMB = gzip.compress(bytes(MAX_DECOMPRESSED_BYTES + 1))


@pytest.mark.parametrize(
    ("body", "headers", "status", "outcome"),
    [
        (b"\xff", {}, 400, "invalid"),
        (b"{", {"content_type": "application/json"}, 400, "invalid"),
        (BODY, {"content_encoding": "gzip"}, 400, "invalid"),
        (BODY, {"content_encoding": "br"}, 415, "unsupported"),
        (BODY, {"content_type": "text/plain"}, 415, "unsupported"),
        (BODY, {"authorization": "Bearer nobody"}, 401, "unauthenticated"),
        (bytes(MAX_BODY_BYTES + 1), {}, 413, "too_large"),
        (BOMB, {"content_encoding": "gzip"}, 413, "too_large"),
        (b"\xff" * 50_000, {}, 400, "invalid"),
    ],
)
@in_loop
async def test_invalid_http_request_is_refused_permanently(
    tmp_path: Path, body: bytes, headers: dict[str, str], status: int, outcome: str
) -> None:
    async with opened(tmp_path) as receivers:
        assert (await post(receivers, body, **headers)).status_code == status
        assert receivers.receiver.requests == {("otlp_http", outcome): 1}
        assert (await post(receivers)).status_code == 200


@in_loop
async def test_invalid_grpc_request_is_refused_permanently(tmp_path: Path) -> None:
    async with opened(tmp_path) as receivers:
        assert (await refused(receivers, b"\xff")).code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (await refused(receivers, authorization="Bearer x")).code() is grpc.StatusCode.UNAUTHENTICATED
        await refused(receivers, bytes(MAX_BODY_BYTES + 1))
        assert await export(receivers) == b""


@in_loop
async def test_slow_or_truncated_request_does_not_affect_others(tmp_path: Path) -> None:
    async with opened(tmp_path, timeout_s=3.0) as receivers:
        host, _, port = receivers.http.rpartition(":")
        head = (
            b"POST /v1/metrics HTTP/1.1\r\nHost: h\r\nContent-Type: application/x-protobuf\r\nContent-Length: 9\r\n\r\n"
        )
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head)
        assert b" 503 " in await reader.readline()
        writer.close()
        _, cut = await asyncio.open_connection(host, int(port))
        cut.write(head + b"1")
        cut.close()
        assert (await post(receivers)).status_code == 200


@in_loop
async def test_large_requests_beyond_the_budget_are_retried_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp_receiver, "_MAX_HELD_BYTES", 100_000)
    large = ExportMetricsServiceRequest(resource_metrics=[resource(2_500, client_id="app")]).SerializeToString()
    assert 50_000 < len(large) < MAX_BODY_BYTES
    async with opened(tmp_path) as receivers:
        await receivers.receiver._parsing.acquire()  # as while a request is parsed
        first = asyncio.create_task(post(receivers, large))
        await until(lambda: receivers.receiver._held_bytes > 0)
        second = await post(receivers, large)
        assert (second.status_code, "retry-after" in second.headers) == (503, True)
        assert (await post(receivers)).status_code == 200
        receivers.receiver._parsing.release()
        assert (await first).status_code == 200
        assert (await post(receivers, large)).status_code == 200
        assert len(receivers.pushes()) == 3
