"""Data points per CPU-second through OTLP/HTTP and OTLP/gRPC, beside the Kafka listener and an OpenTelemetry Collector.

The same points of Java producers, 196 per request: CPU of the process that accepts them, until they are in the spool
(Headroom, storage worker stopped) or decoded and batched (the collector, nop exporter). python -m tests.bench.otlp_in
"""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from headroom.demo.processes import LOOPBACK, free_ports
from tests.bench.figure import tell
from tests.bench.kit.child import Child
from tests.bench.kit.load_generator import LoadGenerator, real_payloads
from tests.bench.kit.otlp_load import POINTS, VECTOR
from tests.bench.kit.serve import Serve, cpu_s, open_files_allowed
from tests.kit.collector import Collector

CLIENTS = 200
INTERVAL_MS = 100  # of the Kafka clients: the shortest that KIP-714 allows
WARM_S, SECONDS = 1.0, 3.0

Run = Callable[[float], int]  # seconds -> requests or pushes that were acknowledged


@contextlib.contextmanager
def otlp_load(protocol: str, address: str) -> Iterator[Run]:
    """tests.bench.kit.otlp_load in a separate process."""
    command = [sys.executable, "-m", "tests.bench.kit.otlp_load", protocol, address, str(CLIENTS)]
    with Child(command) as load:
        assert load.line() == "ready"
        yield lambda seconds: int(load.ask(str(seconds)))


@contextlib.contextmanager
def kafka_load(port: int) -> Iterator[Run]:
    with LoadGenerator(port, CLIENTS, CLIENTS, real_payloads(VECTOR, POINTS), INTERVAL_MS) as load:
        yield lambda seconds: load.measure(seconds).acknowledged


@contextlib.contextmanager
def paused(process: psutil.Process) -> Iterator[None]:
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


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


def main() -> None:
    open_files_allowed()
    collector = collector_rates()
    ports = dict(zip(("http", "grpc"), free_ports(2), strict=True))
    otlp = {protocol: f"{LOOPBACK}:{port}" for protocol, port in ports.items()}
    with Serve(INTERVAL_MS, otlp=otlp, spool={"max_bytes": 8 << 30}) as serve:
        with kafka_load(serve.port) as run, paused(serve.worker):
            kafka = received(run, serve.network)
        for protocol, address in otlp.items():
            with otlp_load(protocol, address) as run, paused(serve.worker):
                rate, theirs = received(run, serve.network), collector[protocol]
            baseline = f"collector_{protocol}_decode_and_batch:{theirs:.0f}"
            tell(f"otlp_{protocol}_received", rate, "points/cpu_s", rate / theirs, baseline, digits=0)
            tell(f"kafka_beside_otlp_{protocol}", kafka, "points/cpu_s", kafka / rate, f"otlp_{protocol}", digits=0)


if __name__ == "__main__":
    main()
