"""Rows per CPU-second of all processes, from the clients' sockets until the rows are merged in ClickHouse.

2,000 client instances push payloads of a Java producer, 196 points in 3 kB of zstd, once a second for 13 s: a new
fleet, all of whose series are new; the same fleet in steady state; and again after a restart of the service. CPU is
that of the network process, the storage worker and ClickHouse with its merges, minus their idle CPU. Each measurement
begins with an empty table `points` and ends when all of its rows are in one part: which rows ClickHouse merges by
itself in these seconds is chance. Standard error has the CPU of both, and the part's level. Rollups are
measured apart, because their cost depends on how often an hour is computed. The service runs compiled if
`make compiled` was run. Prints the load average of the minute: CPU-seconds cost more on a busy machine.

python -m tests.bench.whole_way [SECONDS]
"""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

import psutil

from exporters.clickhouse.client import with_writer
from exporters.clickhouse.connection import Endpoint
from telemetry.ingest.rollups import ROLL_UP, slices
from tests.bench.figure import tell
from tests.bench.kit.load_generator import TURNS, LoadGenerator, real_payloads
from tests.bench.kit.serve import ASKED_EVERY_S, Serve, builds, cpu_s, open_files_allowed
from tests.bench.performance import NEW_FLEET_ROWS, STEADY_ROWS
from tests.bench.scale import MERGES, PARTS, ROLLUP_MS, Spent, idle_cores, rss, spent
from tests.kit.clickhouse import connected
from tests.kit.serving import eventually

VECTOR = "java-4.3.1-producer.zst"
POINTS = 196
INSTANCES = 2_000
INTERVAL_MS = 1_000
RAMP_MS = 1_000
DEFAULT_S = 13.0
KNOWN_S = 2.5  # until every instance has pushed again
PATIENCE_S = 100.0
NEXT_MERGE_S = 3.0  # ClickHouse looks for the next merge after a while; else it counts in the next measurement


def pushed(serve: Serve, run: int, idle: float, seconds: float, warm_s: float = 0.0) -> float:
    """Rows per CPU-second for `seconds` of pushes after `warm_s`, until all rows are written and in one part.

    `run` shifts the timestamps, because equal rows are merged into one.
    """
    payloads = real_payloads(VECTOR, POINTS, run * TURNS)
    written_to(serve, "TRUNCATE TABLE headroom.points")
    first = spent(serve)
    with LoadGenerator(serve.port, INSTANCES, INSTANCES, payloads, RAMP_MS) as load:
        if warm_s:
            load.measure(warm_s)
            first = spent(serve)
        measured = load.measure(seconds)
    print(f"whole way: {measured.acknowledged} pushes acknowledged, {measured.refused} refused", file=sys.stderr)
    settle(serve)
    last = spent(serve)
    cpu = _sum(last) - _sum(first) - idle * (last.at_s - first.at_s)
    rows = last.rows - first.rows
    written_to(serve, "OPTIMIZE TABLE headroom.points FINAL")
    end = spent(serve)
    # This merge has the rows of `warm_s`, too.
    merge_s = (end.clickhouse_s - last.clickhouse_s - idle * (end.at_s - last.at_s)) * rows / last.rows
    print(
        f"whole way: {rows} rows, CPU of network, worker, ClickHouse: {_parts(first, last)}, {rows / cpu:.0f} rows per"
        f" CPU-second; the last merge {merge_s:.1f} s, its level {level(serve)}",
        file=sys.stderr,
    )
    return rows / (cpu + merge_s)


def settle(serve: Serve) -> None:
    """Returns once all rows are written and no merge has followed another for NEXT_MERGE_S."""
    serve.written(PATIENCE_S)
    for _ in range(2):
        eventually(lambda: serve.query(MERGES), lambda found: found == ["0"], PATIENCE_S, ASKED_EVERY_S)
        time.sleep(NEXT_MERGE_S)


def written_to(serve: Serve, sql: str) -> None:
    """Runs a statement as the writer."""
    with connected(with_writer(Endpoint.parse(serve.url)), send_receive_timeout=PATIENCE_S) as client:
        client.command(sql)


def rolled_up(serve: Serve) -> float:
    """CPU seconds of ClickHouse for the rollup of every hour."""
    before_s = cpu_s(serve.clickhouse)
    series = int(serve.query("SELECT count() FROM headroom.series")[0])
    hours = serve.query("SELECT DISTINCT intDiv(toUnixTimestamp(ts), 3600) FROM headroom.points")
    with connected(with_writer(Endpoint.parse(serve.url)), send_receive_timeout=PATIENCE_S) as client:
        for part in (part for hour in hours for part in slices(int(hour), series)):
            client.command(ROLL_UP, parameters=part.parameters())
    return cpu_s(serve.clickhouse) - before_s


def level(serve: Serve) -> int:
    """How often a row was merged, at most. Raises ValueError while a day's rows are in more than one part."""
    parts, days, highest = serve.query(f"SELECT count(), uniqExact(partition), max(level) {PARTS}")[0].split("\t")
    if parts != days:
        raise ValueError(f"the rows are in {parts} parts")
    return int(highest)


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_S
    open_files_allowed()
    settings = {"spool": {"max_bytes": 8 << 30}, "store": {"rollup_ms": ROLLUP_MS}}
    with Serve(INTERVAL_MS, [*builds().values()][-1], **settings) as serve:
        idle_bytes = sum(map(rss, processes(serve)))
        idle = sum(idle_cores(serve))
        new = pushed(serve, 0, idle, seconds)
        steady = pushed(serve, 1, idle, seconds, KNOWN_S)
        peak_bytes = sum(map(peak_rss, processes(serve)))
        rows, rollup_s = spent(serve).rows, rolled_up(serve)
        serve.restart()
        eventually(serve.metrics, lambda found: found["headroom_store_up"] == 1)
        settle(serve)
        back = pushed(serve, 2, idle, seconds)
    tell("whole_way_new_fleet", new, "rows/cpu_s", new / NEW_FLEET_ROWS, "goal_250k", digits=0)
    tell("whole_way_steady", steady, "rows/cpu_s", steady / STEADY_ROWS, "goal_400k", digits=0)
    tell("whole_way_fleet_comes_back", back, "rows/cpu_s", back / NEW_FLEET_ROWS, "goal_250k", digits=0)
    tell("whole_way_rollup", rows / rollup_s, "rows/cpu_s", rows / rollup_s / steady, "steady", digits=0)
    tell("load_average", os.getloadavg()[0], "runnable", os.getloadavg()[0] / (os.cpu_count() or 1), "core")
    tell("memory_peak_all_processes", peak_bytes, "bytes", peak_bytes / idle_bytes, "idle", digits=0)
    tell("memory_idle_all_processes", idle_bytes, "bytes", 1, "idle", digits=0)


def processes(serve: Serve) -> list[psutil.Process]:
    return [serve.network, serve.worker, serve.clickhouse]


def peak_rss(process: psutil.Process) -> float:
    """The peak resident set size in bytes."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024.0


def _sum(at: Spent) -> float:
    return at.network_s + at.worker_s + at.clickhouse_s


def _parts(first: Spent, last: Spent) -> str:
    used = (last.network_s - first.network_s, last.worker_s - first.worker_s, last.clickhouse_s - first.clickhouse_s)
    return ", ".join(f"{one:.1f} s" for one in used)


if __name__ == "__main__":
    main()
