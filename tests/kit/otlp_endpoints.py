"""OTLP endpoints that keep accepted requests and return scripted responses: gRPC by grpcio, HTTP by http.server."""

import gzip
import ssl
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import grpc
import zstandard
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as services
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_DELTA

_LOOPBACK = "127.0.0.1"


class Refusal(NamedTuple):
    """An error response. `status`: the name of a gRPC code, or an HTTP status; 200 is a page, as of a login. `body` is
    gRPC's message, too."""

    status: str | int
    retry_after_s: int | None = None
    body: bytes = b""
    content_type: str = "text/html"


class ServerTls(NamedTuple):
    """PEM files. Clients need a certificate of the same CA."""

    ca: Path
    certificate: Path
    key: Path

    def grpc_credentials(self) -> grpc.ServerCredentials:
        ca, certificate, key = (path.read_bytes() for path in self)
        return grpc.ssl_server_credentials([(key, certificate)], ca, require_client_auth=True)

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self.ca))
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(self.certificate, self.key)
        return context


class Received:
    """Requests to an endpoint. `answers` are returned first, one per request: refusals or rejected points."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.refused = 0
        self.refused_empty = 0  # of those
        self.answers: deque[Refusal | int] = deque()
        self.refuses_deltas = False  # a request with any, as Prometheus does
        self.refuses_metric = ""  # requests with a metric of this name are refused permanently
        self.refuses_empty = False  # likewise those without a metric
        self.refuses_with: Refusal | None = None  # by default as a bad request
        self.refuses_all: Refusal | None = None
        self.message = ""  # in the response to an accepted request
        self.max_bytes = 1 << 30  # of a message; larger ones are refused as collectors and proxies do

    def take(self, request: Any, headers: dict[str, str], bad_request: Refusal) -> Refusal | Any:
        """A refusal, or the response."""
        answer: Refusal | int = self.answers.popleft() if self.answers else 0
        names = [metric.name for metric in metrics_of(request)]
        if (self.refuses_metric and self.refuses_metric in names) or (self.refuses_empty and not names):
            answer = self.refuses_with or bad_request
        if self.refuses_deltas and any(
            getattr(metric, kind).aggregation_temporality == AGGREGATION_TEMPORALITY_DELTA
            for metric in metrics_of(request)
            for kind in ("sum", "histogram", "exponential_histogram")
        ):
            answer = Refusal(500, None, b'invalid temporality and type combination for metric "s"')
        if request.ByteSize() > self.max_bytes:
            answer = Refusal(413 if bad_request.status == 400 else "RESOURCE_EXHAUSTED")
        answer = self.refuses_all or answer
        if isinstance(answer, Refusal):
            self.refused += 1
            self.refused_empty += not names
            return answer
        if names:
            self.requests.append(request)
            self.headers.append(headers)
        response = ExportMetricsServiceResponse()
        response.partial_success.rejected_data_points = answer
        response.partial_success.error_message = self.message
        return response

    def values(self) -> list[float]:
        return sorted(point.as_double for metric in self.metrics() for point in metric.gauge.data_points)

    def metrics(self) -> list[Any]:
        return [metric for request in self.requests for metric in metrics_of(request)]

    def resources(self) -> list[dict[str, str | int]]:
        return [
            {pair.key: pair.value.string_value or pair.value.int_value for pair in each.resource.attributes}
            for request in self.requests
            for each in request.resource_metrics
        ]


def metrics_of(request: Any) -> list[Any]:
    return [
        metric
        for each in request.resource_metrics
        for scope_metrics in each.scope_metrics
        for metric in scope_metrics.metrics
    ]


@contextmanager
def grpc_endpoint(received: Received, port: int = 0, tls: ServerTls | None = None) -> Iterator[str]:
    """HOST:PORT of a collector's gRPC receiver."""

    class Service(services.MetricsServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            headers = {str(name): str(value) for name, value in context.invocation_metadata()}
            headers["peer"] = context.peer()
            answer = received.take(request, headers, Refusal("INVALID_ARGUMENT"))
            if isinstance(answer, Refusal):
                if answer.retry_after_s is not None:
                    info = RetryInfo()
                    info.retry_delay.seconds = answer.retry_after_s
                    detail = AnyMessage()
                    detail.Pack(info)
                    status = Status(details=[detail]).SerializeToString()
                    context.set_trailing_metadata((("grpc-status-details-bin", status),))
                context.abort(grpc.StatusCode[str(answer.status)], answer.body.decode())
            return answer

    server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
    services.add_MetricsServiceServicer_to_server(Service(), server)
    address = f"{_LOOPBACK}:{port}"
    bound = server.add_secure_port(address, tls.grpc_credentials()) if tls else server.add_insecure_port(address)
    server.start()
    try:
        yield f"{_LOOPBACK}:{bound}"
    finally:
        server.stop(0).wait()


@contextmanager
def http_endpoint(received: Received, port: int = 0, tls: ServerTls | None = None) -> Iterator[str]:
    """HOST:PORT of a collector's HTTP receiver, at /v1/metrics."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            request = ExportMetricsServiceRequest.FromString(_DECODERS[self.headers.get("Content-Encoding", "")](body))
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = received.take(request, headers, Refusal(400))
            refusal = answer if isinstance(answer, Refusal) else None
            found = self.path == "/v1/metrics"
            self.send_response(404 if not found else int(refusal.status) if refusal else 200)
            if refusal and refusal.retry_after_s is not None:
                self.send_header("Retry-After", str(refusal.retry_after_s))
            response = answer.body if isinstance(answer, Refusal) else answer.SerializeToString()
            self.send_header("Content-Type", refusal.content_type if refusal else "application/x-protobuf")
            self.send_header("Content-Length", str(len(response)))
            self.end_headers()
            self.wfile.write(response)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((_LOOPBACK, port), Handler) as server:
        if tls:
            server.socket = tls.context().wrap_socket(server.socket, server_side=True)
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"{_LOOPBACK}:{server.server_port}"
        finally:
            server.shutdown()


_DECODERS: dict[str, Callable[[bytes], bytes]] = {"": bytes, "gzip": gzip.decompress, "zstd": zstandard.decompress}
ENDPOINTS = {"grpc": grpc_endpoint, "http": http_endpoint}
