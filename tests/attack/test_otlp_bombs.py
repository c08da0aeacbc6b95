"""OTLP and gRPC requests of some kilobytes that would take gigabytes or stop the worker, beside a Kafka client."""

import gzip
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import httpx
import psutil
import pytest
import zstandard
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from telemetry.proto.headroom.telemetry.v1 import telemetry_pb2 as pb
from tests.attack.victim import MB, Neighbour, watched
from tests.kit.otlp_payloads import field, in_metric, resource
from tests.kit.raw_connection import RawConnection
from tests.kit.serving import PATIENCE_S, Served, config_file, eventually, rows

pytestmark = [pytest.mark.release, pytest.mark.clickhouse]

EXPORT = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
PUSH = "/headroom.telemetry.v1.ClientTelemetryService/PushTelemetry"
ATTACK_S, AT_ONCE = 3.0, 4
ELSEWHERE = "127.0.0.2"  # another address than the attacker's, so another payer
HELD_MB = 400.0  # of the process with the receivers; the bombs unpack to 256 MB or more each
MILLION = 1_000_000
OVER_BUDGET = 503  # the attacker's address has used its budget of bytes, which a fast machine does in seconds


def strange_numbers() -> bytes:
    """Points whose values and times are legal for protobuf and make no sense."""
    sent = resource(4, client_id="strange")
    [metric] = sent.scope_metrics[0].metrics
    for point, (value, time_ns) in zip(
        metric.gauge.data_points,
        ((math.nan, 1), (math.inf, 2**64 - 1), (-math.inf, 0), (1e308, 2**63)),
        strict=True,
    ):
        point.as_double, point.time_unix_nano, point.start_time_unix_nano = value, time_ns, 2**64 - 1
    return ExportMetricsServiceRequest(resource_metrics=[sent]).SerializeToString()


def wide_window() -> bytes:
    """A frame that asks its reader for a window of 2 GiB."""
    compressor = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(window_log=31, enable_ldm=True)
    ).compressobj()
    return compressor.compress(bytes(MILLION)) + compressor.flush()


# body, its encoding, and the statuses that an HTTP client may get
BOMBS: dict[str, tuple[Callable[[], bytes], str, set[int]]] = {
    "gzip of 256 MB": (lambda: gzip.compress(bytes(1 << 28), 1), "gzip", {413}),
    "gzip of gzip of 256 MB": (lambda: gzip.compress(gzip.compress(bytes(1 << 28), 1)), "gzip", {400}),
    "zstd with a window of 2 GiB": (wide_window, "zstd", {400, 413}),
    "a million attributes": (
        lambda: gzip.compress(field(1, field(1, field(1, field(1, b"k") + field(2, field(1, b"v"))) * MILLION))),
        "gzip",
        {400, 413},
    ),
    "a million points": (lambda: gzip.compress(in_metric(5, field(1, b"") * 8 * MILLION)), "gzip", {400, 413}),
    "a part that is no message": (lambda: field(1, b"\xff" * 1_000), "identity", {400}),
    "100,000 texts that are no UTF-8": (
        lambda: gzip.compress(field(1, field(1, field(1, field(1, b"\xff") + field(2, field(1, b"\x80"))) * 100_000))),
        "gzip",
        {200},
    ),
    "NaN, infinity and the year 2554": (strange_numbers, "identity", {200}),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    receivers = {"otlp": {"http": "127.0.0.1:0", "grpc": "127.0.0.1:0"}, "grpc": {"listen": "127.0.0.1:0"}}
    directory = tmp_path_factory.mktemp("bombs")
    with Served(directory, *config_file(directory, push_ms=100, **receivers)) as running:
        yield running


def http_status(served: Served, body: bytes, encoding: str) -> str:
    url = f"http://{served.addresses['otlp-http']}/v1/metrics"
    headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": encoding}
    return str(httpx.post(url, content=body, headers=headers, timeout=PATIENCE_S).status_code)


def grpc_status(address: str, method: str, body: bytes, compression: grpc.Compression) -> str:
    with grpc.insecure_channel(address, options=[("grpc.max_send_message_length", -1)]) as channel:
        call = channel.unary_unary(method)  # bytes as they are
        try:
            call(body, timeout=PATIENCE_S, compression=compression)
        except grpc.RpcError as refused:
            return str(refused.code().name)
    return "OK"


def stored(served: Served) -> set[int]:
    sql = "SELECT value FROM headroom.client_metrics WHERE value BETWEEN 1e12 AND 1e15"
    return {int(value) for (value,) in rows(served.sql, sql)}


def besieged(
    served: Served, tried: str, attack: Callable[[], str], capsys: pytest.CaptureFixture[str]
) -> tuple[Counter[str], float]:
    """The answers to an attack that is repeated, and how much memory it took; the neighbour loses nothing."""
    neighbour, process = Neighbour(lambda: RawConnection(served.kafka, ELSEWHERE)), psutil.Process(served.process.pid)
    with watched(tried, process, neighbour, capsys, 0.11) as report, ThreadPoolExecutor(AT_ONCE) as pool:
        answers, ends_s = Counter[str](), time.monotonic() + ATTACK_S
        while time.monotonic() < ends_s:
            answers += Counter(pool.map(lambda _: attack(), range(AT_ONCE)))
        report.shown = ", ".join(f"{count}x {name}" for name, count in answers.items())
    eventually(lambda: neighbour.acknowledged - stored(served), lambda lost: not lost)
    assert served.metrics()["headroom_worker_restarts_total"] == 0
    return answers, report.peak_mb


@pytest.mark.parametrize("bomb", BOMBS)
def test_bomb_by_http_costs_nobody_else_anything(served: Served, bomb: str, capsys: pytest.CaptureFixture[str]) -> None:
    make, encoding, allowed = BOMBS[bomb]
    body = make()
    tried = f"OTLP/HTTP: {bomb} in {len(body):,} bytes"
    answers, peak_mb = besieged(served, tried, lambda: http_status(served, body, encoding), capsys)
    statuses = {int(status) for status in answers}
    assert statuses & allowed
    assert statuses <= allowed | {OVER_BUDGET}
    assert peak_mb < HELD_MB


@pytest.mark.parametrize("bomb", ["a million attributes", "NaN, infinity and the year 2554"])
def test_bomb_by_grpc_costs_nobody_else_anything(served: Served, bomb: str, capsys: pytest.CaptureFixture[str]) -> None:
    make, encoding, allowed = BOMBS[bomb]
    body = gzip.decompress(make()) if encoding == "gzip" else make()
    address = served.addresses["otlp-grpc"]
    tried = f"OTLP/gRPC: {bomb}, {len(body):,} bytes before gzip"
    answers, peak_mb = besieged(
        served, tried, lambda: grpc_status(address, EXPORT, body, grpc.Compression.Gzip), capsys
    )
    assert set(answers) <= ({"OK"} if allowed == {200} else {"INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"})
    assert peak_mb < HELD_MB


def test_message_of_64_mb_by_grpc_is_refused(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """gRPC decompresses before anybody sees the message: its limit counts the bytes after that."""
    body = pb.PushTelemetryRequest(client_instance_id=bytes(range(16)), metrics=bytes(64 * MB)).SerializeToString()
    tried = f"gRPC: a PushTelemetry of {len(body) // MB} MB, by gzip some kB"
    answers, peak_mb = besieged(
        served, tried, lambda: grpc_status(served.grpc, PUSH, body, grpc.Compression.Gzip), capsys
    )
    assert set(answers) == {"RESOURCE_EXHAUSTED"}
    assert peak_mb < HELD_MB
