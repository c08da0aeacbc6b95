"""Acknowledged pushes per CPU-second of the network process of `headroom serve`, in the shapes of real fleets.

A load generator in C keeps KIP-714's intervals. The storage worker is stopped (SIGSTOP) while the spool is written, so
that it does not compete for CPU; full segments are released in its place, to be overwritten, as in a service whose
worker keeps up. Each shape is measured on a bare uvloop loop and on `headroom serve`, in turns, with the compiled copy
of the packages if build/compiled exists (`make compiled`); then once on the source. A figure is the median of ROUNDS, a
ratio the median of the ratios within each round. python -m tests.bench.shapes
"""

import contextlib
import fcntl
import signal
import statistics
import sys
import tempfile
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil

from exporters.spool.records import FREE_SUFFIX, SUFFIX
from tests.bench.figure import tell
from tests.bench.kit.child import Child
from tests.bench.kit.load_generator import LoadGenerator, random_payloads
from tests.bench.kit.serve import Serve, builds, cpu_s, open_files_allowed
from tests.kit.serving import running

ROUNDS = 3
WARM_S, WINDOW_S, WINDOWS = 1.5, 1.0, 2
RAMP_MS = 1_500
RELEASED_EVERY_S = 0.1
SPOOL, TELEMETRY = {"max_bytes": 8 << 30, "segment_bytes": 16 << 20}, {"max_instances": 20_000}


class Shape(NamedTuple):
    """The shape of a fleet; the interval yields 25,000 to 40,000 pushes per second."""

    name: str
    payload_bytes: int
    instances: int
    connections: int
    interval_ms: int


SHAPES = (
    Shape("500B_4000_connections", 500, 4_000, 4_000, 100),
    Shape("500B_100_connections_150_instances_each", 500, 15_000, 100, 400),
    Shape("3kB_4000_connections", 3_000, 4_000, 4_000, 150),
)


def pushes_per_cpu_s(shape: Shape, port: int, process: psutil.Process, stopped: psutil.Process | None = None) -> float:
    """Median of the windows; the process `stopped` is paused meanwhile. Raises RuntimeError when a push is refused."""
    found = []
    payloads = random_payloads(shape.payload_bytes)
    with LoadGenerator(port, shape.instances, shape.connections, payloads, RAMP_MS) as load:
        if stopped:
            stopped.send_signal(signal.SIGSTOP)
        load.measure(WARM_S)
        for _ in range(WINDOWS):
            before = cpu_s(process)
            measured = load.measure(WINDOW_S)
            if measured.refused:
                raise RuntimeError(f"{shape.name}: {measured.refused} of {measured.sent} pushes were refused")
            found.append(measured.acknowledged / (cpu_s(process) - before))
    return statistics.median(found)


def bare(shape: Shape) -> float:
    command = [sys.executable, "-m", "tests.bench.kit.receivers", "bare", tempfile.gettempdir(), str(shape.interval_ms)]
    with Child(command) as receiver:
        return pushes_per_cpu_s(shape, int(receiver.line()), receiver.process)


def released(directory: Path, done: threading.Event) -> None:
    while not done.wait(RELEASED_EVERY_S):
        for segment in directory.rglob(f"*{SUFFIX}"):
            with contextlib.suppress(BlockingIOError), segment.open() as file:  # locked: it is still written
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                segment.rename(segment.with_suffix(FREE_SUFFIX))


def headroom(shape: Shape, environment: Mapping[str, str]) -> float:
    with (
        Serve(shape.interval_ms, environment, TELEMETRY, spool=SPOOL) as serve,
        running(partial(released, serve.data / "spool")),
    ):
        try:
            return pushes_per_cpu_s(shape, serve.port, serve.network, serve.worker)
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):  # it was paused for so long that its parent replaced it
                serve.worker.send_signal(signal.SIGCONT)


def main() -> None:
    open_files_allowed()
    for shape in SHAPES:
        found = builds()
        build, environment = found.popitem()
        rounds = [(bare(shape), headroom(shape, environment)) for _ in range(ROUNDS)]
        _tell(shape, build, statistics.median(ours for _, ours in rounds), [ours / theirs for theirs, ours in rounds])
        for other, environment in found.items():
            rate = headroom(shape, environment)
            _tell(shape, other, rate, [rate / statistics.median(theirs for theirs, _ in rounds)])


def _tell(shape: Shape, build: str, rate: float, ratios: list[float]) -> None:
    ratio = statistics.median(ratios)
    tell(f"push_{shape.name}_{build}", rate, "pushes/cpu_s", ratio, "bare_uvloop_loop", digits=0)


if __name__ == "__main__":
    main()
