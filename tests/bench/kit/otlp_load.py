"""`python -m tests.bench.kit.otlp_load grpc|http HOST:PORT CLIENTS`: exports as fast as they are answered.

Each client exports payloads of a Java producer in turn, as a broker plug-in does: one client per request, its identity
as resource attributes, uncompressed. Prints "ready", then for each line `SECONDS` on standard input how many requests
were accepted. Ends with an error when one is refused or rejected in part.
"""

from __future__ import annotations

import itertools
import selectors
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from exporters.model import Connection, Push
from telemetry.forward.resources import resource_metrics_of
from telemetry.forward.selection import ForwardSelection
from tests.bench.kit.fleet import ZSTD, fleet

VECTOR = "java-4.3.1-producer.zst"
POINTS = 196
TURNS = 8  # requests of a client, each with its own timestamps and values
CONNECTIONS = 16  # each with one request in flight
_METHOD = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
_MAX_BYTES = 1 << 20


def requests(clients: int) -> list[bytes]:
    """TURNS ExportMetricsServiceRequests of each client."""
    return [request for turn in zip(*_by_client(clients), strict=True) for request in turn]


def _by_client(clients: int) -> Iterator[list[bytes]]:
    for number, client in enumerate(fleet(VECTOR, clients, POINTS)):
        connection = Connection("bench", "EXTERNAL", "bench", "10.0.0.1", 1024, "software", "1.0", 1)
        name, instance = f"app-{number}", number.to_bytes(16, "big")
        pushes = (Push(connection, name, instance, 0, 7, False, ZSTD, client.payload(turn)) for turn in range(TURNS))
        yield [_export(push) for push in pushes]


def _export(push: Push) -> bytes:
    resources = resource_metrics_of(push, ForwardSelection(), max_decompressed_bytes=_MAX_BYTES)
    return bytes(ExportMetricsServiceRequest(resource_metrics=resources).SerializeToString())


class HttpLoad:
    """OTLP/HTTP over keep-alive connections."""

    def __init__(self, address: str, bodies: list[bytes]) -> None:
        host, _, port = address.rpartition(":")
        head = f"POST /v1/metrics HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/x-protobuf\r\n"
        self._requests = itertools.cycle(
            [f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body for body in bodies]
        )
        self._selector = selectors.DefaultSelector()
        self._connections = [socket.create_connection((host, int(port)), 60) for _ in range(CONNECTIONS)]
        for connection in self._connections:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(connection, selectors.EVENT_READ)

    def run(self, seconds: float) -> int:
        end, count, waiting = time.perf_counter() + seconds, 0, CONNECTIONS
        for connection in self._connections:
            connection.sendall(next(self._requests))
        while waiting:
            for key, _ in self._selector.select(60):
                answered = key.fileobj
                assert isinstance(answered, socket.socket)
                _read_success(answered)
                count += 1
                if time.perf_counter() < end:
                    answered.sendall(next(self._requests))
                else:
                    waiting -= 1
        return count


def _read_success(connection: socket.socket) -> None:
    answer = connection.recv(65_536)
    while b"\r\n\r\n" not in answer:
        answer += connection.recv(65_536)
    head, _, body = answer.partition(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    while len(body) < length:
        body += connection.recv(65_536)
    if b" 200 " not in head[:16] or ExportMetricsServiceResponse.FromString(body).partial_success.rejected_data_points:
        raise RuntimeError(f"refused: {answer[:300]!r}")


class GrpcLoad:
    """OTLP/gRPC: unary calls on one channel, as exporters make them."""

    def __init__(self, address: str, bodies: list[bytes]) -> None:
        import grpc

        self._requests = itertools.cycle(bodies)
        self._call = grpc.insecure_channel(address).unary_unary(_METHOD)

    def run(self, seconds: float) -> int:
        end, count = time.perf_counter() + seconds, 0
        calls: list[Any] = [self._call.future(next(self._requests), timeout=60) for _ in range(CONNECTIONS)]
        while calls:
            response = ExportMetricsServiceResponse.FromString(calls.pop(0).result())
            if response.partial_success.rejected_data_points:
                raise RuntimeError(f"rejected: {response}")
            count += 1
            if time.perf_counter() < end:
                calls.append(self._call.future(next(self._requests), timeout=60))
        return count


def main() -> None:
    protocol, address, clients = sys.argv[1], sys.argv[2], int(sys.argv[3])
    bodies = requests(clients)
    load = GrpcLoad(address, bodies) if protocol == "grpc" else HttpLoad(address, bodies)
    print("ready", flush=True)
    for line in sys.stdin:
        print(load.run(float(line)), flush=True)


if __name__ == "__main__":
    main()
