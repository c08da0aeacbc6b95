"""OTLP receivers of ours in the running loop, with a real spool behind them, and OpenTelemetry's own exporters."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from exporters.model import Push
from exporters.spool.reader import SpoolReader
from exporters.spool.records import decode_push
from exporters.spool.writer import PushSpool, SpoolWriter
from headroom.server.http import HttpServer
from telemetry.receiver.group_commit import GroupCommit
from telemetry.receiver.grpc_auth import Access
from telemetry.receiver.grpc_server import GrpcLimits
from telemetry.receiver.otlp_export import OtlpLimits
from telemetry.receiver.otlp_grpc import OtlpGrpcServer
from telemetry.receiver.otlp_http import HttpLimits, otlp_app
from telemetry.receiver.otlp_identity import DIALECTS
from telemetry.receiver.otlp_receiver import OtlpReceiver
from telemetry.subscriptions.payer_budgets import Payers

TOKEN = "the-token-of-the-collector"
BEARER = {"authorization": f"Bearer {TOKEN}"}
CLUSTER = "ours"
MAX_BODY_BYTES = 100_000
MAX_DECOMPRESSED_BYTES = 200_000


class OpenOtlp:
    """Both receivers. `grpc` and `http` are HOST:PORT."""

    def __init__(
        self, directory: Path, *, direct: bool = True, max_bytes: int = 1 << 20, timeout_s: float = 30
    ) -> None:
        self.writer = SpoolWriter(directory / "spool", "pushes", segment_bytes=1 << 20, max_bytes=max_bytes)
        self.spool = PushSpool(lambda _: self.writer, "pushes")
        self.flush_fails = False
        self._directory = directory / "spool"
        self.payers = Payers()
        self.receiver = OtlpReceiver(
            self.spool,
            GroupCommit(self._flush, lambda _: None),
            cluster=CLUSTER,
            dialect=DIALECTS["any"],
            now_ms=lambda: 1_700_000_000_000,
            limits=OtlpLimits(),
            charge=lambda address, nbytes: self.payers.charge_address(address, 0, nbytes),
        )
        access = Access(tokens=[TOKEN], subjects=(), direct=direct)
        self._grpc = OtlpGrpcServer(self.receiver, access, GrpcLimits(MAX_BODY_BYTES, 100, 100, timeout_s), None)
        limits = HttpLimits(MAX_BODY_BYTES, MAX_DECOMPRESSED_BYTES, 100, timeout_s)
        self._http = HttpServer(otlp_app(self.receiver, access, limits), "127.0.0.1", 0)

    async def start(self) -> None:
        self.grpc, self.http = (
            "{}:{}".format(*address) for address in (await self._grpc.start("127.0.0.1", 0), await self._http.start())
        )

    async def stop(self) -> None:
        await self._grpc.stop(0.2)
        await self._http.stop()
        self.spool.close()

    def pushes(self) -> list[Push]:
        with contextlib.closing(SpoolReader(self._directory)) as reader:
            batch = reader.next_batch(10_000, 1 << 24)
            return [decode_push(body) for _, body in batch.records] if batch else []

    def _flush(self) -> None:
        if self.flush_fails:
            raise OSError("no space left on device")
        self.spool.flush()


@contextlib.asynccontextmanager
async def opened(directory: Path, **settings: Any) -> AsyncIterator[OpenOtlp]:
    receivers = OpenOtlp(directory, **settings)
    await receivers.start()
    try:
        yield receivers
    finally:
        await receivers.stop()


def grpc_exporter(
    address: str, headers: dict[str, str], *, gzip: bool = False, timeout_s: float = 20
) -> MetricExporter:
    import grpc

    codec = grpc.Compression.Gzip if gzip else grpc.Compression.NoCompression
    return GrpcExporter(
        endpoint=f"http://{address}", insecure=True, headers=headers, compression=codec, timeout=timeout_s
    )


def http_exporter(
    address: str, headers: dict[str, str], *, gzip: bool = False, timeout_s: float = 20
) -> MetricExporter:
    codec = Compression.Gzip if gzip else Compression.NoCompression
    return HttpExporter(endpoint=f"http://{address}/v1/metrics", headers=headers, compression=codec, timeout=timeout_s)


EXPORTERS: dict[str, Callable[..., MetricExporter]] = {"grpc": grpc_exporter, "http": http_exporter}


def send_metrics(exporter: MetricExporter, resource: dict[str, str]) -> bool:
    """A counter, a gauge and a histogram by OpenTelemetry's SDK; whether the exporter says that they were taken."""
    results: list[MetricExportResult] = []
    export = exporter.export

    @functools.wraps(export)
    def observed(*args: Any, **kwargs: Any) -> MetricExportResult:
        results.append(export(*args, **kwargs))
        return results[-1]

    exporter.export = observed  # type: ignore[method-assign]
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)
    provider = MeterProvider([reader], Resource(resource))
    meter = provider.get_meter("meter")
    meter.create_counter("sent").add(3, {"topic": "t"})
    meter.create_gauge("lag").set(7.5)
    meter.create_histogram("latency").record(12)
    provider.shutdown()
    return results == [MetricExportResult.SUCCESS]


async def send(exporter: MetricExporter, resource: dict[str, str]) -> bool:
    """As `send_metrics`, without blocking the event loop that serves."""
    return await asyncio.to_thread(send_metrics, exporter, resource)
