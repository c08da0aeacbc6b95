"""Data points per CPU-second through OTLP/HTTP and OTLP/gRPC, beside the Kafka listener and an OpenTelemetry Collector.

The same points of Java producers, 196 per request. `received`: CPU of the process that accepts them, until they are in
the spool (Headroom, storage worker stopped) or decoded and batched (the collector, nop exporter). `stored`: CPU of all
processes of Headroom until the rows are in ClickHouse. python -m tests.bench.otlp_in
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil

from headroom.demo.processes import LOOPBACK, free_ports
from tests.bench.figure import tell
from tests.bench.kit.load_generator import LoadGenerator, real_payloads
from tests.bench.kit.otlp_load import POINTS, VECTOR
from tests.bench.kit.serve import Serve, cpu_s, open_files_allowed
from tests.kit.collector import Collector

CLIENTS = 200
INTERVAL_MS = 100  # of the Kafka clients: the shortest that KIP-714 allows
WARM_S, SECONDS = 1.0, 3.0
PATIENCE_S = 100.0

Run = Callable[[float], int]  # seconds -> requests or pushes that were acknowledged


@contextlib.contextmanager
def otlp_load(protocol: str, address: str) -> Iterator[Run]:
    """tests.bench.kit.otlp_load in a separate process."""
    command = [sys.executable, "-m", "tests.bench.kit.otlp_load", protocol, address, str(CLIENTS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        reported, asked = process.stdout, process.stdin
        if reported.readline() != "ready\n":
            raise RuntimeError(f"the {protocol} load did not start")

        def run(seconds: float) -> int:
            asked.write(f"{seconds}\n")
            asked.flush()
            return int(reported.readline())

        try:
            yield run
        finally:
            process.kill()


@contextlib.contextmanager
def kafka_load(port: int) -> Iterator[Run]:
    with LoadGenerator(port, CLIENTS, CLIENTS, real_payloads(VECTOR, POINTS), INTERVAL_MS) as load:
        yield lambda seconds: load.measure(seconds).acknowledged


def received(run: Run, process: psutil.Process) -> float:
    """Points per CPU-second of the receiving process, after a warm-up."""
    run(WARM_S)
    before = cpu_s(process)
    count = run(SECONDS)
    return count * POINTS / (cpu_s(process) - before)


def collector_rates() -> dict[str, float]:
    """By protocol."""
    found = {}
    with (
        tempfile.TemporaryDirectory(prefix="headroom-bench-") as directory,
        Collector(Path(directory)) as collector,
    ):
        for protocol, address in (("http", collector.http), ("grpc", collector.grpc)):
            with otlp_load(protocol, address) as run:
                found[protocol] = received(run, collector.process)
    return found


def headroom_rates(
    open_load: Callable[[], contextlib.AbstractContextManager[Run]], serve: Serve
) -> tuple[float, float]:
    """Received and stored."""
    with open_load() as run:
        serve.worker.send_signal(signal.SIGSTOP)
        try:
            rate = received(run, serve.network)
        finally:
            serve.worker.send_signal(signal.SIGCONT)
    serve.written(PATIENCE_S)
    with open_load() as run:
        run(WARM_S)
        before, pushes = _cpu_of_all(serve), _pushes(serve)
        run(SECONDS)
    serve.written(PATIENCE_S)
    return rate, (_pushes(serve) - pushes) * POINTS / (_cpu_of_all(serve) - before)


def _cpu_of_all(serve: Serve) -> float:
    return sum(map(cpu_s, (serve.network, serve.worker, serve.clickhouse)))


def _pushes(serve: Serve) -> int:
    """How many are in ClickHouse."""
    return int(serve.query("SELECT count() FROM headroom.pushes WHERE error_code = 0")[0])


def main() -> None:
    open_files_allowed()
    collector = collector_rates()
    ports = dict(zip(("http", "grpc"), free_ports(2), strict=True))
    otlp = {protocol: f"{LOOPBACK}:{port}" for protocol, port in ports.items()}
    with Serve(INTERVAL_MS, otlp=otlp, spool={"max_bytes": 8 << 30}) as serve:
        kafka = headroom_rates(lambda: kafka_load(serve.port), serve)
        rates = {
            protocol: headroom_rates(partial(otlp_load, protocol, address), serve) for protocol, address in otlp.items()
        }
    for protocol, rate in collector.items():
        tell(f"otlp_{protocol}_collector_received", rate, "points/cpu_s", 1, "collector", digits=0)
    for protocol, (rate, stored) in rates.items():
        baseline = f"collector_{protocol}_decode_and_batch"
        tell(f"otlp_{protocol}_received", rate, "points/cpu_s", rate / collector[protocol], baseline, digits=0)
        tell(f"otlp_{protocol}_stored", stored, "points/cpu_s", stored / kafka[1], "kafka_listener", digits=0)
    tell(
        "otlp_beside_kafka_received",
        kafka[0],
        "points/cpu_s",
        kafka[0] / collector["http"],
        "collector_http_decode_and_batch",
        digits=0,
    )
    tell("otlp_beside_kafka_stored", kafka[1], "points/cpu_s", 1, "kafka_listener", digits=0)


if __name__ == "__main__":
    main()
