"""The OTLP/HTTP receiver: POST /v1/metrics, protobuf or JSON, plain, gzip or zstd (OTLP specification, "OTLP/HTTP").

400 is permanent; 503 with Retry-After asks to retry. Errors are google.rpc.Status in the encoding of the request.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from google.protobuf import json_format
from google.rpc.status_pb2 import Status
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from telemetry.decode.bounds import DecompressError, TooLarge, decompress
from telemetry.receiver.grpc_auth import Access, UnauthenticatedError
from telemetry.receiver.otlp_identity import OtlpCaller
from telemetry.receiver.otlp_parsing import OtlpError, ParsedRequest, parse_json, parse_protobuf
from telemetry.receiver.otlp_receiver import RETRY_AFTER_S, OtlpBusyError, OtlpReceiver

TRANSPORT: Final = "otlp_http"
_PARSERS: Final[dict[str, Callable[[bytes], ParsedRequest]]] = {
    "application/x-protobuf": parse_protobuf,
    "application/json": parse_json,
}
# Content-Encoding -> Kafka's CompressionType id, which `decompress` takes
_CODECS: Final = {"": 0, "identity": 0, "gzip": 1, "zstd": 4}


class HttpLimits(NamedTuple):
    """Limits of one request, and of all requests together."""

    max_body_bytes: int  # before decompression
    max_decompressed_bytes: int
    max_concurrent_requests: int
    receive_timeout_s: float


class UnsupportedMediaError(Exception):
    """The type or the encoding of a body that nobody reads here."""


# Status, the label under which a refusal is counted (the receiver counts its own), and why, if the error does not say.
_STATUS: Final[dict[type[Exception], tuple[int, str, str]]] = {
    UnauthenticatedError: (401, "unauthenticated", ""),
    UnsupportedMediaError: (415, "unsupported", ""),
    TimeoutError: (503, "timeout", "the request did not arrive in time"),
    ClientDisconnect: (400, "invalid", "the request body is incomplete"),
    DecompressError: (400, "invalid", ""),
    TooLarge: (413, "too_large", ""),
    OtlpError: (400, "", ""),
    OtlpBusyError: (503, "", ""),
}


def otlp_app(receiver: OtlpReceiver, access: Access, limits: HttpLimits) -> Starlette:
    endpoint = _Endpoint(receiver, access, limits)
    return Starlette(routes=[Route("/v1/metrics", endpoint.export, methods=["POST"])])


class _Endpoint:
    def __init__(self, receiver: OtlpReceiver, access: Access, limits: HttpLimits) -> None:
        self._receiver = receiver
        self._access = access
        self._limits = limits
        self._open = 0

    async def export(self, request: Request) -> Response:
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if self._open >= self._limits.max_concurrent_requests:
            self._receiver.requests[TRANSPORT, "busy"] += 1
            return _error(503, "too many requests at once", content_type)
        self._open += 1
        try:
            trusted = self._access.is_trusted(request.headers.getlist("authorization"), None)
            if content_type not in _PARSERS:
                raise UnsupportedMediaError("Content-Type is not application/x-protobuf or application/json")
            body = await self._read_body(request)
            sender = OtlpCaller(request.client.host if request.client else "", trusted, TRANSPORT)
            export = await self._receiver.accept(body, _PARSERS[content_type], sender)
            return _encoded(200, export.response(), content_type)
        except tuple(_STATUS) as exc:
            status, outcome, why = _STATUS[type(exc)]
            if outcome:
                self._receiver.requests[TRANSPORT, outcome] += 1
            return _error(status, str(exc) or why, content_type)
        finally:
            self._open -= 1

    async def _read_body(self, request: Request) -> bytes:
        encoding = request.headers.get("content-encoding", "").strip().lower()
        if encoding not in _CODECS:
            raise UnsupportedMediaError("Content-Encoding is not identity, gzip or zstd")
        async with asyncio.timeout(self._limits.receive_timeout_s):
            parts, size = [], 0
            async for part in request.stream():
                size += len(part)
                if size > self._limits.max_body_bytes:
                    raise TooLarge(f"a body of more than {self._limits.max_body_bytes} bytes")
                parts.append(part)
        return decompress(_CODECS[encoding], b"".join(parts), max_bytes=self._limits.max_decompressed_bytes)


def _error(status: int, why: str, content_type: str) -> Response:
    response = _encoded(status, Status(message=why), content_type)
    if status == 503:
        response.headers["Retry-After"] = str(RETRY_AFTER_S)
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _encoded(status: int, message: Any, content_type: str) -> Response:
    """Responds in the encoding of the request, as OTLP requires; in protobuf if that is neither protobuf nor JSON."""
    if content_type == "application/json":
        return Response(json_format.MessageToJson(message, indent=None), status, media_type=content_type)
    return Response(message.SerializeToString(), status, media_type="application/x-protobuf")
