"""Rows per CPU-second of all processes, from the clients' sockets until the rows are merged in ClickHouse.

2,000 client instances push payloads of a Java producer, 196 points in 3 kB of zstd, once a second for 13 s: a new
fleet, all of whose series are new; the same fleet in steady state; and again after a restart of the service. CPU is
that of the network process, the storage worker and ClickHouse with its merges, minus their idle CPU. Each measurement
begins with an empty table `points` and ends when all of its rows are in one part: which rows ClickHouse merges by
itself in these seconds is chance. Standard error has the CPU of both, and the part's level. Rollups do not run. The
service runs compiled if `make compiled` was run.

python -m tests.bench.whole_way
"""

import sys

from exporters.clickhouse.client import with_writer
from exporters.clickhouse.connection import Endpoint
from tests.bench.figure import tell
from tests.bench.kit.load_generator import TURNS, LoadGenerator, real_payloads
from tests.bench.kit.serve import Serve, builds, open_files_allowed
from tests.bench.performance import NEW_FLEET_ROWS, STEADY_ROWS
from tests.bench.scale import PARTS, ROLLUP_MS, idle_cores, spent, written
from tests.kit.clickhouse import connected
from tests.kit.serving import eventually

VECTOR = "java-4.3.1-producer.zst"
POINTS = 196
INSTANCES = 2_000
INTERVAL_MS = 1_000
RAMP_MS = 1_000
SECONDS = 13.0
KNOWN_S = 2.5  # until every instance has pushed again
PATIENCE_S = 100.0


def pushed(serve: Serve, run: int, idle: float, warm_s: float = 0.0) -> float:
    """Rows per CPU-second for SECONDS of pushes after `warm_s`, until all rows are written and in one part.

    `run` shifts the timestamps, because equal rows are merged into one.
    """
    payloads = real_payloads(VECTOR, POINTS, run * TURNS)
    written_to(serve, "TRUNCATE TABLE headroom.points")
    first = spent(serve)
    with LoadGenerator(serve.port, INSTANCES, INSTANCES, payloads, RAMP_MS) as load:
        if warm_s:
            load.measure(warm_s)
            first = spent(serve)
        measured = load.measure(SECONDS)
    print(f"whole way: {measured.acknowledged} pushes acknowledged, {measured.refused} refused", file=sys.stderr)
    written(serve)
    last = spent(serve)
    parts = (last.network_s - first.network_s, last.worker_s - first.worker_s, last.clickhouse_s - first.clickhouse_s)
    cpu = sum(parts) - idle * (last.at_s - first.at_s)
    rows = last.rows - first.rows
    written_to(serve, "OPTIMIZE TABLE headroom.points FINAL")
    end = spent(serve)
    # This merge has the rows of `warm_s`, too.
    merge_s = (end.clickhouse_s - last.clickhouse_s - idle * (end.at_s - last.at_s)) * rows / last.rows
    used = ", ".join(f"{part_s:.1f} s" for part_s in parts)
    print(
        f"whole way: {rows} rows, CPU of network, worker, ClickHouse: {used},"
        f" {rows / cpu:.0f} rows per CPU-second; the last merge {merge_s:.1f} s, its level {level(serve)}",
        file=sys.stderr,
    )
    return rows / (cpu + merge_s)


def written_to(serve: Serve, sql: str) -> None:
    with connected(with_writer(Endpoint.parse(serve.url)), send_receive_timeout=PATIENCE_S) as client:
        client.command(sql)


def level(serve: Serve) -> int:
    """How often a row was merged, at most. Raises ValueError while a day's rows are in more than one part."""
    parts, days, highest = serve.query(f"SELECT count(), uniqExact(partition), max(level) {PARTS}")[0].split("\t")
    if parts != days:
        raise ValueError(f"the rows are in {parts} parts")
    return int(highest)


def main() -> None:
    open_files_allowed()
    settings = {"spool": {"max_bytes": 8 << 30}, "store": {"rollup_ms": ROLLUP_MS}}
    with Serve(INTERVAL_MS, [*builds().values()][-1], **settings) as serve:
        idle = sum(idle_cores(serve))
        new = pushed(serve, 0, idle)
        steady = pushed(serve, 1, idle, KNOWN_S)
        serve.restart()
        eventually(serve.metrics, lambda found: found["headroom_store_up"] == 1)
        written(serve)
        back = pushed(serve, 2, idle)
    tell("whole_way_new_fleet", new, "rows/cpu_s", new / NEW_FLEET_ROWS, "goal_250k", digits=0)
    tell("whole_way_steady", steady, "rows/cpu_s", steady / STEADY_ROWS, "goal_400k", digits=0)
    tell("whole_way_fleet_comes_back", back, "rows/cpu_s", back / NEW_FLEET_ROWS, "goal_250k", digits=0)


if __name__ == "__main__":
    main()
