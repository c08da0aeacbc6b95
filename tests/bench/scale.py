"""`make scale CLIENTS=N`: N client instances push to `headroom serve` at their real interval; compared with the plan.

python -m tests.bench.scale CLIENTS [INTERVAL_S]

INTERVAL_S 0 or none: 10 s, and longer above 33,330 clients, so that there are 3,333 pushes a second (300 s for a
million, KIP-714's default). CPU and lag of the network process are those of the measured time. CPU of the storage
worker and of ClickHouse is that of the measured time and on, until the spool is empty and no merge follows, or for
PATIENCE_S; the prediction is for the pushes, rows and merges of that time. Prints a line per figure:
`scale NAME measured=M predicted=P ratio=R unit=U`. A run takes about 1.6 intervals or, above 38 s, half of one, then
3 minutes, and twice PATIENCE_S at most.
"""

import contextlib
import os
import sys
import time
from typing import Any, NamedTuple

import psutil

from exporters.clickhouse.client import with_writer
from exporters.clickhouse.connection import Endpoint
from headroom.capacity.model import Workload, clickhouse_cores, load_figures, network_cores, row_bytes, worker_cores
from tests.bench.kit.load_generator import MAX_CONNECTIONS, LoadGenerator, Measured, real_payloads
from tests.bench.kit.serve import ASKED_EVERY_S, Serve, cpu_s, open_files_allowed
from tests.kit.clickhouse import connected
from tests.kit.serving import eventually

VECTOR = "librdkafka-2.16.0-producer.zst"
SECONDS = 60.0
PUSHES_PER_S = 3_333  # unless the interval is given
MIN_INTERVAL_S = 10.0
GETS_PER_S = 20_000  # while the clients connect
FIRST_PUSHES = 1.6  # intervals until each client has pushed once, which writes the rows of its series
FULL_RATE = 0.5  # intervals until all clients push, after they have connected
WARM_MOST_S = 60.0  # with longer intervals first pushes are measured, too
IDLE_S = 8.0
PATIENCE_S = 240.0  # time limit for the worker to write its backlog, and for merging all parts
MERGED_ROWS = 20_000_000  # more are not merged into one part: bytes of a row are those of the parts as they are
NEXT_MERGE_S = 3.0  # ClickHouse looks for the next merge after a while
ROLLUP_MS = 86_400_000  # none within the measured time
PARTS = "FROM system.parts WHERE active AND database = 'headroom' AND table = 'points'"
MERGES = "SELECT count() FROM system.merges"
MERGED = "SELECT sum(value) FROM system.events WHERE event = 'MergedRows'"


class Spent(NamedTuple):
    """CPU seconds of each process so far, and the contents of the store."""

    at_s: float
    network_s: float
    worker_s: float
    clickhouse_s: float
    pushes: float
    stored: int  # of these
    rows: int
    merged: int  # rows of any table, each time that they were


class Run(NamedTuple):
    """Results of one run. CPU excludes that of the idle service."""

    load: Measured
    push_us: float
    pushes_s: float  # that were stored
    points: float  # a push
    merges: float  # of a row
    worker: float  # cores
    clickhouse: float
    turns: float  # points of each series, on average
    row_bytes: float  # after all parts are merged
    instance_bytes: float
    push_bytes: float
    backlog_s: float  # until the spool was empty, after the measured time
    unwritten: float  # pushes that were still in the spool after PATIENCE_S


def spent(serve: Serve) -> Spent:
    rows = int(serve.query(f"SELECT sum(rows) {PARTS}")[0])
    pushes = serve.metrics().get("headroom_push_telemetry_total:NONE", 0)
    stored, merged = int(serve.query("SELECT count() FROM headroom.pushes")[0]), int(serve.query(MERGED)[0])
    cpu = (cpu_s(serve.network), cpu_s(serve.worker), cpu_s(serve.clickhouse))
    return Spent(time.monotonic(), *cpu, pushes, stored, rows, merged)


def run(clients: int, interval_s: float) -> Run:
    """Connects the clients, lets each push once if that does not take too long, then measures."""
    open_files_allowed()
    settings: dict[str, Any] = {
        "telemetry": {"max_instances": clients + 1000},
        "gateway": {"max_connections": 19_000, "max_connections_per_address": 19_000},
        "spool": {"max_bytes": 16 << 30},
        "store": {"rollup_ms": ROLLUP_MS},
    }
    with Serve(round(interval_s * 1000), **settings) as serve:
        eventually(serve.metrics, lambda found: found["headroom_store_up"] == 1)
        time.sleep(IDLE_S)  # idle CPU excludes the creation of the schema and the merges of its rows
        base = rss(serve.network)
        idle = idle_cores(serve)
        ramp_ms = max(1000, clients * 1000 // GETS_PER_S)
        with LoadGenerator(serve.port, clients, MAX_CONNECTIONS, real_payloads(VECTOR), ramp_ms) as load:
            load.measure(warm_s(interval_s))
            first = spent(serve)
            measured = load.measure(SECONDS)
            then = spent(serve)
            instance_bytes = (rss(serve.network) - base) / clients
        backlog_s = written(serve)
        last = spent(serve)
        unwritten = serve.metrics()["headroom_records:buffered"]
        if last.rows <= MERGED_ROWS:
            with connected(with_writer(Endpoint.parse(serve.url)), send_receive_timeout=PATIENCE_S) as client:
                client.command("OPTIMIZE TABLE headroom.points FINAL")
        disk, merged = serve.query(f"SELECT sum(bytes_on_disk), sum(rows) {PARTS}")[0].split("\t")
        series = int(serve.query("SELECT uniqCombined(series_id) FROM headroom.points")[0])
    pushing_s, whole_s = then.at_s - first.at_s, last.at_s - first.at_s
    pushes, rows = last.stored - first.stored, last.rows - first.rows
    return Run(
        measured,
        (then.network_s - first.network_s - idle[0] * pushing_s) / (then.pushes - first.pushes) * 1e6,
        pushes / pushing_s,
        rows / pushes,
        (last.merged - first.merged) / (rows + 2 * pushes),
        (last.worker_s - first.worker_s - idle[1] * whole_s) / pushing_s,
        (last.clickhouse_s - first.clickhouse_s - idle[2] * whole_s) / pushing_s,
        int(merged) / series,
        int(disk) / int(merged),
        instance_bytes,
        load.payload_bytes,
        backlog_s,
        unwritten,
    )


def warm_s(interval_s: float) -> float:
    every_s = FIRST_PUSHES * interval_s
    return every_s if every_s <= WARM_MOST_S else FULL_RATE * interval_s


def written(serve: Serve) -> float:
    """Seconds until the spool is empty. Waits until no merge follows another, too, and PATIENCE_S at most for each."""
    began = time.monotonic()
    with contextlib.suppress(AssertionError):
        serve.written(PATIENCE_S)
    took_s = time.monotonic() - began
    for _ in range(2):
        with contextlib.suppress(AssertionError):
            eventually(lambda: serve.query(MERGES), lambda found: found == ["0"], PATIENCE_S, ASKED_EVERY_S)
        time.sleep(NEXT_MERGE_S)
    return took_s


def idle_cores(serve: Serve) -> list[float]:
    """CPU of the network process, the storage worker and ClickHouse without clients."""
    processes = (serve.network, serve.worker, serve.clickhouse)
    before = [cpu_s(process) for process in processes]
    time.sleep(IDLE_S)
    return [(cpu_s(process) - old) / IDLE_S for process, old in zip(processes, before, strict=True)]


def rss(process: psutil.Process) -> float:
    return float(process.memory_info().rss)


def report(name: str, measured: float, predicted: float, unit: str) -> None:
    ratio = measured / predicted if predicted else float("nan")
    print(f"scale {name} measured={measured:.4g} predicted={predicted:.4g} ratio={ratio:.2f} unit={unit}", flush=True)


def main() -> None:
    clients = int(sys.argv[1])
    interval_s = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    interval_s = interval_s or max(MIN_INTERVAL_S, clients / PUSHES_PER_S)
    seen = run(clients, interval_s)
    load, figures = seen.load, load_figures()
    pushes_s = load.acknowledged / load.seconds
    held = min(clients, MAX_CONNECTIONS)  # half of a pair each: there is no broker
    instance_bytes = figures.instance_bytes + held / clients * figures.connection_bytes / 2
    work = Workload(clients, interval_s, seen.points, seen.push_bytes, brokers=0)
    stored = Workload(clients, clients / seen.pushes_s, seen.points, brokers=0)
    report("interval", interval_s, 0, "s")
    report("first_pushes_measured", float(warm_s(interval_s) < interval_s), 0, "0 or 1")
    report("pushes_per_s", pushes_s, clients / interval_s, "1/s")
    report("refused", load.refused, 0, "pushes")
    report("network_cores", pushes_s * seen.push_us / 1e6, network_cores(work, figures), "cores")
    report("worker_cores", seen.worker, worker_cores(stored, figures), "cores")
    report("clickhouse_cores", seen.clickhouse, clickhouse_cores(stored, figures, seen.merges), "cores")
    report("row_bytes", seen.row_bytes, row_bytes(figures, seen.turns), "bytes")
    report("instance", seen.instance_bytes, instance_bytes, "bytes")
    report("network_memory", clients * seen.instance_bytes, clients * instance_bytes, "bytes")
    report("p50", load.p50_ms, 0, "ms")
    report("p99", load.p99_ms, 0, "ms")
    report("generator_late", load.late_ms, 0, "ms")
    report("lag_at_the_end", seen.backlog_s, 0, "s")
    report("unwritten", seen.unwritten, 0, "records")
    report("load_average", os.getloadavg()[1], 0, "runnable")
    print(*(f"{name}={value:.4g}" for name, value in seen._asdict().items() if name != "load"), file=sys.stderr)


if __name__ == "__main__":
    main()
