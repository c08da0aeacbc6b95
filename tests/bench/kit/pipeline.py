"""`python -m tests.bench.kit.pipeline VECTOR TURNS TEMPLATE_BYTES`: from spool to ClickHouse in a separate process.

Prints rows, CPU seconds of this process and of the ClickHouse server with its merges, and bytes on disk. Measures
clients in steady state: each has pushed once before the measurement starts.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from exporters.spool.reader import SpoolReader
from telemetry.ingest.ingester import Ingester, IngestOptions
from telemetry.ingest.progress import Progress
from telemetry.ingest.quarantine import Quarantine
from tests.bench.kit.fleet import fleet, spooled
from tests.kit.clickhouse import RunningClickHouse, running_clickhouse

CLIENTS = 400
BYTES = "SELECT sum(bytes_on_disk), sum(rows) FROM system.parts WHERE active AND table = 'points'"


def measured(directory: Path, vector: str, turns: int, template_bytes: int) -> dict[str, float]:
    with running_clickhouse(directory / "store") as clickhouse:
        return _measured(directory, clickhouse, vector, turns, template_bytes)


def _measured(
    directory: Path, clickhouse: RunningClickHouse, vector: str, turns: int, template_bytes: int
) -> dict[str, float]:
    store = clickhouse.store
    ingester = Ingester(
        SpoolReader(directory / "spool"),
        store,
        Quarantine(directory / "quarantine", 10, 1 << 20),
        IngestOptions(max_decompressed_bytes=1 << 20, rollup_interval_ms=60_000, max_template_bytes=template_bytes),
        Progress(time.monotonic),
    )
    clients = list(fleet(vector, CLIENTS))
    spooled(directory / "spool", clients, range(1))
    now_ms = time.time_ns() // 1_000_000
    while ingester.step(now_ms):
        pass
    before = ingester.counts.points_written
    spooled(directory / "spool", clients, range(1, turns))
    begun = _cpu_s(clickhouse)
    while ingester.step(now_ms):
        pass
    while store.query("SELECT count() FROM system.merges")[0][0]:
        time.sleep(0.05)
    cpu_s = _cpu_s(clickhouse) - begun
    assert ingester.counts.dropped.total() == 0
    store.command("OPTIMIZE TABLE headroom.points FINAL", {})  # the state that merges reach in time
    [(nbytes, rows)] = store.query(BYTES)
    return {"rows": ingester.counts.points_written - before, "cpu_s": cpu_s, "bytes_per_row": nbytes / rows}


def _cpu_s(clickhouse: RunningClickHouse) -> float:
    used = clickhouse.process.cpu_times()
    return time.process_time() + used.user + used.system


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="headroom-bench-") as directory:
        print(json.dumps(measured(Path(directory), sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
