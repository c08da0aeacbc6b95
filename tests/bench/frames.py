"""Frames per CPU-second of a proxy: our gateway, a blind copy on uvloop and kroxylicious-runtime, in one run.

Clients and broker are one process in C on another core (kit/framegen.c), with Produce and Fetch of several sizes. All
proxies have served and closed connections before the first shape. They take turns of 50 ms of CPU, and the first one of
each round changes, because a virtual machine's cores are slower by up to a third for seconds. A figure is the median of
ROUNDS, a ratio the median of the ratios within each round, which another run finds again within about 5 %.

Then the latency that our gateway adds at 200 B, and its memory of idle connections, beside the blind copy. With `tls`
the clients' side is TLS, with one cipher for all, which needs the headers of OpenSSL. With `topics` there are two of
our gateways: one reads the topics of 1 % of the frames, the other of none. Our gateways run from the compiled copy of
the packages, if there is one (`make compiled`), as in `make bench`.

python -m tests.bench.frames [tls|topics]
"""

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from headroom.demo.jars import fetch_once, find_java
from headroom.demo.jvm import Jvm
from headroom.demo.processes import LOOPBACK, free_ports
from tests.bench.figure import tell
from tests.bench.kit.child import Child, compiled
from tests.bench.kit.serve import builds, cpu_s, open_files_allowed
from tests.kit.certificates import CertificateAuthority

ROUNDS, ROUND_S, WARM_S = 40, 0.05, 0.4
ROUND_CPU_S, MOST_RUNS = 0.05, 20
LATENCY_ROUNDS, LATENCY_S = 5, 0.4
FIRST_CPU_S = 0.3
JIT_CPU_S = 4.0  # once, until the JVM has compiled what it runs
IDLE = 10_000
SPARE_FILES = 500
SOURCE = Path(__file__).parent / "kit" / "framegen.c"
VERSION = "0.12.0"  # of kroxylicious; the newest one that is published as a library
_KROXYLICIOUS = f'<dependency org="io.kroxylicious" name="kroxylicious-runtime" rev="{VERSION}"/>'
_CIPHER = "TLS_AES_256_GCM_SHA384"  # which OpenSSL takes; netty would take AES-128
_JVM = ["-Xms512m", "-Xmx512m", "-XX:+UseSerialGC", "-Djava.awt.headless=true"]  # one core: the collector that fits it


class Shape(NamedTuple):
    """`fetch`: the responses are large, not the requests."""

    name: str
    size: int
    connections: int
    in_flight: int
    fetch: bool = False


SHAPES = (
    Shape("200B_1", 200, 50, 1),
    Shape("200B_8", 200, 50, 8),
    Shape("16kB_produce", 16_000, 20, 1),
    Shape("16kB_fetch", 16_000, 20, 1, fetch=True),
    Shape("100kB_produce", 100_000, 8, 1),
    Shape("100kB_fetch", 100_000, 8, 1, fetch=True),
    Shape("1MB_produce", 1_000_000, 4, 1),
    Shape("1MB_fetch", 1_000_000, 4, 1, fetch=True),
)
ONE = Shape("latency_200B", 200, 1, 1)


class Generator:
    """kit/framegen.c with the clients and the broker of one proxy, on its own core."""

    def __init__(self, tls: bool) -> None:
        self._tls = tls
        with on_core(1):
            self._child = Child([compiled(SOURCE, *(["-DTLS", "-lssl", "-lcrypto"] if tls else []))])
        self.broker = int(self._child.line())

    def open(self, port: int, shape: Shape, connections: int | None = None) -> None:
        sizes = (0, shape.size) if shape.fetch else (shape.size, 0)
        tls = self._tls and port != self.broker
        numbers = (port, int(tls), int(shape.fetch), connections or shape.connections, shape.in_flight, *sizes)
        assert self._child.ask("open " + " ".join(map(str, numbers))) == "ready"

    def run(self, seconds: float) -> dict[str, float]:
        return dict(json.loads(self._child.ask(f"run {seconds}")))

    def close(self) -> None:
        self._child.ask("close")

    def stop(self) -> None:
        self._child.stop()


class Proxy(NamedTuple):
    name: str
    port: int
    process: psutil.Process
    load: Generator

    def frames_per_cpu_s(self, enough_cpu_s: float = ROUND_CPU_S, run_s: float = ROUND_S) -> float:
        """Of a run in which the proxy gets that much CPU, however busy the machine is."""
        before, frames, used = cpu_s(self.process), 0.0, 0.0
        for _ in range(MOST_RUNS):
            frames += self.load.run(run_s)["frames"]
            used = cpu_s(self.process) - before
            if used >= enough_cpu_s:
                break
        return frames / used


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Processes that are started here stay on one core, where there are two."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(allowed)[core % len(allowed)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


@contextmanager
def python_proxy(kind: str, load: Generator, files: list[str]) -> Iterator[Proxy]:
    command = [sys.executable, "-m", "tests.bench.kit.proxies", kind, str(load.broker), *files]
    with tempfile.TemporaryDirectory() as spool:
        with on_core(0):
            child = Child(command, os.environ | list(builds().values())[-1] | {"TMPDIR": spool})
        with child:
            yield Proxy(kind, int(child.line()), child.process, load)


@contextmanager
def kroxylicious(load: Generator, files: list[str]) -> Iterator[Proxy]:
    """A virtual cluster without filters."""
    java, cache = find_java(), Path(".cache") / f"kroxylicious-{VERSION}" / "libs"
    fetch_once(java, cache.absolute(), _KROXYLICIOUS, lambda text: print(text, file=sys.stderr), "kroxylicious")
    port = free_ports(1)[0]
    address = {"bootstrapAddress": f"{LOOPBACK}:{port}"}
    gateway: dict[str, Any] = {"name": "default", "portIdentifiesNode": address}
    if files:
        key = {"certificateFile": files[0], "privateKeyFile": files[1]}
        gateway["tls"] = {"key": key, "cipherSuites": {"allowed": [_CIPHER]}}
    cluster = {
        "name": "bench",
        "targetCluster": {"bootstrapServers": f"{LOOPBACK}:{load.broker}"},
        "gateways": [gateway],
    }
    with on_core(0):
        jvm = Jvm(java, cache.absolute(), _JVM)
        jvm.start()
    try:
        proxy = jvm.classes.io.kroxylicious.proxy
        parser = proxy.config.ConfigParser()
        config = parser.parseConfiguration(json.dumps({"virtualClusters": [cluster]}))
        proxy.KafkaProxy(parser, config, proxy.internal.config.Features.defaultFeatures()).startup()
        yield Proxy("kroxylicious", port, psutil.Process(jvm.pid), load)
    finally:
        jvm.stop()


def frames(ours: str, proxies: list[Proxy], shape: Shape) -> None:
    """Prints the figure of `ours` beside the others."""
    for proxy in proxies:
        proxy.load.open(proxy.port, shape)
        proxy.load.run(WARM_S)
    found: dict[str, list[float]] = {proxy.name: [] for proxy in proxies}
    for number in range(ROUNDS):
        first = number % len(proxies)
        for proxy in proxies[first:] + proxies[:first]:
            found[proxy.name].append(proxy.frames_per_cpu_s())
    for proxy in proxies:
        proxy.load.close()
    medians = {name: statistics.median(values) for name, values in found.items()}
    for name in [proxy.name for proxy in proxies if proxy.name != ours]:
        ratio = statistics.median(mine / theirs for mine, theirs in zip(found[ours], found[name], strict=True))
        tell(f"frames_{shape.name}", medians[ours], "frames/cpu-s", ratio, f"{name}:{medians[name]:.0f}", digits=0)


def latency(blind: Proxy, ours: Proxy) -> None:
    """Of one connection with one request in flight, less that of the broker without a proxy."""
    direct = p99_us(blind.load, blind.load.broker)
    theirs, added = (p99_us(proxy.load, proxy.port) - direct for proxy in (blind, ours))
    tell("added_p99_200B", added, "us", added / max(theirs, 1), f"blind:{theirs:.0f}", digits=0)


def p99_us(load: Generator, port: int) -> float:
    """The median of the rounds."""
    load.open(port, ONE)
    load.run(WARM_S)
    p99 = statistics.median(load.run(LATENCY_S)["p99_us"] for _ in range(LATENCY_ROUNDS))
    load.close()
    return p99


def idle(blind: Proxy, ours: Proxy) -> None:
    """Memory of a proxy per client connection that is open and does nothing."""
    count = min(IDLE, (open_files_allowed() - SPARE_FILES) // 2)
    held = {}
    for proxy in (blind, ours):
        before = proxy.process.memory_info().rss
        proxy.load.open(proxy.port, ONE, connections=count)
        held[proxy.name] = (proxy.process.memory_info().rss - before) / count
        proxy.load.close()
    name = f"idle_connection_of_{count}"
    tell(name, held["headroom"], "bytes", held["headroom"] / held["blind"], f"blind:{held['blind']:.0f}", digits=0)


def main(tls: bool) -> None:
    with ExitStack() as stack:
        files: list[str] = []
        if tls:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="headroom-bench-"))
            files = [str(file) for file in CertificateAuthority(Path(directory)).issue("proxy")]
        loads = [Generator(tls) for _ in range(3)]
        for load in loads:
            stack.callback(load.stop)
        proxies = [
            stack.enter_context(python_proxy("blind", loads[0], files)),
            stack.enter_context(python_proxy("headroom", loads[1], files)),
            stack.enter_context(kroxylicious(loads[2], files)),
        ]
        for proxy, enough_cpu_s in zip(proxies, (FIRST_CPU_S, FIRST_CPU_S, JIT_CPU_S), strict=True):
            proxy.load.open(proxy.port, SHAPES[1])
            proxy.frames_per_cpu_s(enough_cpu_s, LATENCY_S)
            proxy.load.close()
        for shape in SHAPES:
            frames("headroom", proxies, shape if not tls else shape._replace(name=f"tls_{shape.name}"))
        if not tls:
            latency(*proxies[:2])
            idle(*proxies[:2])


def of_topics() -> None:
    with ExitStack() as stack:
        loads = [Generator(tls=False) for _ in range(2)]
        for load in loads:
            stack.callback(load.stop)
        kinds = zip(("headroom", "topics"), loads, strict=True)
        proxies = [stack.enter_context(python_proxy(kind, load, [])) for kind, load in kinds]
        for shape in SHAPES:
            frames("topics", proxies, shape._replace(name=f"topics_{shape.name}"))


if __name__ == "__main__":
    if "topics" in sys.argv[1:]:
        of_topics()
    else:
        main("tls" in sys.argv[1:])
