"""A fleet that pushes captured payloads of real clients, with values that change per client."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import zstandard
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from exporters.model import Connection, Push, RecordKind
from exporters.spool.records import push_origin, push_record, sender_bytes
from exporters.spool.writer import SpoolWriter
from telemetry.decode.bounds import PayloadLimits
from telemetry.decode.otlp import decode
from telemetry.decode.templates import ABSENT, Template, template_of

VECTORS = Path(__file__).parents[2] / "vectors"
INTERVAL_MS = 10_000
ZSTD = 4


class Client:
    """One client instance: a captured payload with its own client name."""

    def __init__(self, number: int, payload: bytes, first_ms: int) -> None:
        connection = Connection(
            "prod", "EXTERNAL", f"user-{number % 20}", f"10.0.0.{number % 250}", number, "software", "1.0", number % 3
        )
        self._push = Push(
            connection, f"app-{number}", np.random.default_rng(number).bytes(16), first_ms, 7, False, ZSTD, payload
        )
        sender = sender_bytes(connection, self._push.client_id)
        self._origin = push_origin(self._push.client_instance_id, 7, False, ZSTD, sender)
        self._rng = np.random.default_rng(number)
        self._template = _template(self._push)
        self._bytes = np.frombuffer(payload, np.uint8).copy()
        self._times = [self._column(at) for at in (self._template.start_at, self._template.time_at)]
        self._values = self._column(self._template.double_at).view(np.float64)

    def payload(self, turn: int) -> bytes:
        """The compressed payload. Timestamps jitter by some ms; values that were 0, NaN or whole remain so."""
        moved_ns = (turn * INTERVAL_MS + int(self._rng.integers(0, 500))) * 1_000_000
        for at, before in zip((self._template.start_at, self._template.time_at), self._times, strict=True):
            self._write(at, before + np.uint64(moved_ns))
        values = self._values * self._rng.uniform(0.7, 1.3, len(self._values))
        whole = self._values == np.trunc(self._values)
        self._write(self._template.double_at, np.where(whole, np.rint(values), values).view(np.uint64))
        return zstandard.ZstdCompressor().compress(self._bytes.tobytes())

    def push(self, turn: int, spool: SpoolWriter) -> None:
        """Writes pushes to the spool directly, without a network process."""
        received_at_ms = self._push.received_at_ms + turn * INTERVAL_MS
        spool.append(RecordKind.PUSH, push_record(received_at_ms, self._origin, self.payload(turn)))

    def _column(self, at: np.ndarray) -> np.ndarray:
        present = at[at != ABSENT]
        values: np.ndarray = self._bytes[present[:, None] + np.arange(8)].view(np.uint64).ravel()
        return values

    def _write(self, at: np.ndarray, numbers: np.ndarray) -> None:
        present = at[at != ABSENT]
        self._bytes[present[:, None] + np.arange(8)] = numbers.view(np.uint8).reshape(-1, 8)


def fleet(vector: str, size: int, points: int = 0) -> Iterator[Client]:
    """Clients that differ in their values and, like librdkafka's, in the name of their scope.

    `points`: minimum per payload, as for a client with more topics and brokers.
    """
    payload = zstandard.ZstdDecompressor().decompressobj().decompress((VECTORS / vector).read_bytes())
    message = MetricsData.FromString(payload)
    series = [
        getattr(metric, metric.WhichOneof("data") or "gauge").data_points
        for resource in message.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    ]
    missing = points - sum(map(len, series))
    named = [(into, point) for into in series for point in into if point.attributes]
    for n in range(missing):  # points of topics and brokers under other names
        into, point = named[n % len(named)]
        copy = into.add()
        copy.CopyFrom(point)
        copy.attributes[0].value.string_value += f"-{n // len(named)}"
    scopes = [each.scope for resource in message.resource_metrics for each in resource.scope_metrics]
    names = [scope.name for scope in scopes]
    first_ms = max(point.time_unix_nano // 1_000_000 for of_series in series for point in of_series)
    for number in range(size):
        for scope, name in zip(scopes, names, strict=True):
            if name:
                scope.name = f"{name}-{number:06d}"
        yield Client(number, message.SerializeToString(), first_ms)


def spooled(directory: Path, clients: list[Client], turns: range) -> None:
    spool = SpoolWriter(directory, "bench", segment_bytes=64 << 20, max_bytes=8 << 30)
    for turn in turns:
        for client in clients:
            client.push(turn, spool)
        spool.flush()
    spool.close()


def _template(push: Push) -> Template:
    template = template_of(push.payload, decode(push.payload, push, PayloadLimits(), ()))
    assert template is not None
    return template
