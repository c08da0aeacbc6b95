"""The OTLP/HTTP receiver: POST /v1/metrics, protobuf or JSON, plain, gzip or zstd (OTLP specification, "OTLP/HTTP").

400 is permanent; 503 with Retry-After asks the sender to retry. Error bodies are google.rpc.Status in the encoding of
the request.
"""

from __future__ import annotations

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


class _HttpError(Exception):
    """A request refused with an HTTP status. `outcome`: the label under which it is counted."""

    def __init__(self, status: int, outcome: str, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.outcome = outcome


def otlp_app(receiver: OtlpReceiver, access: Access, limits: HttpLimits) -> Starlette:
    """The application of the endpoint."""
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
            return self._refusal(503, "busy", "too many requests at once", content_type)
        self._open += 1
        try:
            trusted = self._access.is_trusted(request.headers.getlist("authorization"), None)
            if content_type not in _PARSERS:
                raise _HttpError(415, "unsupported", "Content-Type is not application/x-protobuf or application/json")
            body = await self._read_body(request)
            sender = OtlpCaller(request.client.host if request.client else "", trusted, TRANSPORT)
            export = await self._receiver.accept(body, _PARSERS[content_type], sender)
            return _encoded(200, export.response(), content_type)
        except UnauthenticatedError as exc:
            return self._refusal(401, "unauthenticated", str(exc), content_type)
        except _HttpError as exc:
            return self._refusal(exc.status, exc.outcome, str(exc), content_type)
        except OtlpError as exc:  # counted by the receiver
            return _error(400, str(exc), content_type)
        except OtlpBusyError as exc:
            return _error(503, str(exc), content_type)
        except ClientDisconnect:
            return self._refusal(400, "invalid", "the request body is incomplete", content_type)
        finally:
            self._open -= 1

    async def _read_body(self, request: Request) -> bytes:
        encoding = request.headers.get("content-encoding", "").strip().lower()
        if encoding not in _CODECS:
            raise _HttpError(415, "unsupported", "Content-Encoding is not identity, gzip or zstd")
        try:
            async with asyncio.timeout(self._limits.receive_timeout_s):
                parts, size = [], 0
                async for part in request.stream():
                    size += len(part)
                    if size > self._limits.max_body_bytes:
                        why = f"a body of more than {self._limits.max_body_bytes} bytes"
                        raise _HttpError(413, "too_large", why)
                    parts.append(part)
        except TimeoutError as exc:
            raise _HttpError(408, "timeout", "the request did not arrive in time") from exc
        try:
            return decompress(_CODECS[encoding], b"".join(parts), max_bytes=self._limits.max_decompressed_bytes)
        except DecompressError as exc:
            raise _HttpError(400, "invalid", str(exc)) from exc
        except TooLarge as exc:
            raise _HttpError(413, "too_large", str(exc)) from exc

    def _refusal(self, status: int, outcome: str, why: str, content_type: str) -> Response:
        self._receiver.refused(TRANSPORT, outcome)
        return _error(status, why, content_type)


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
