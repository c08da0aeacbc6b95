"""Rows per CPU-second from spooled wire bytes to ClickHouse, with templates and with the plain loop over protobuf
objects; and bytes on disk. CPU is that of the process and of the ClickHouse server with its merges.

Clients are in steady state: each has pushed once before the measurement starts. Each run has a process of its own.

python -m tests.bench.wire_to_rows
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from exporters.spool.reader import SpoolReader
from telemetry.ingest.ingester import Ingester, IngestOptions
from telemetry.ingest.progress import Progress
from telemetry.ingest.quarantine import Quarantine
from tests.bench.figure import tell
from tests.bench.kit.fleet import fleet, spooled
from tests.bench.kit.serve import cpu_s
from tests.bench.performance import STORED_ROW_BYTES
from tests.kit.clickhouse import RunningClickHouse, running_clickhouse

RUNS = 2
CLIENTS = 400
WITH_TEMPLATES, WITHOUT = 128 << 20, 0
FLEETS = {"java": ("java-4.3.1-producer.zst", 20), "librdkafka": ("librdkafka-2.16.0-consumer.zst", 40)}
BYTES = "SELECT sum(bytes_on_disk), sum(rows) FROM system.parts WHERE active AND table = 'points'"


def measured(
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
    begun_s = time.process_time() + cpu_s(clickhouse.process)
    while ingester.step(now_ms):
        pass
    while store.query("SELECT count() FROM system.merges")[0][0]:
        time.sleep(0.05)
    spent_s = time.process_time() + cpu_s(clickhouse.process) - begun_s
    assert ingester.counts.dropped.total() == 0
    store.command("OPTIMIZE TABLE headroom.points FINAL", {})  # the state that merges reach in time
    [(nbytes, rows)] = store.query(BYTES)
    return {"rows": ingester.counts.points_written - before, "cpu_s": spent_s, "bytes_per_row": nbytes / rows}


def run(vector: str, turns: int, template_bytes: int) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.bench.wire_to_rows", vector, str(turns), str(template_bytes)]
    figures: dict[str, float] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return figures


def main() -> None:
    for name, (vector, turns) in FLEETS.items():
        templates, plain = [], []
        for _ in range(RUNS):
            templates.append(run(vector, turns, WITH_TEMPLATES))
            plain.append(run(vector, turns, WITHOUT))
        rows_per_s, baseline = (
            statistics.median(one["rows"] / one["cpu_s"] for one in runs) for runs in (templates, plain)
        )
        ratio = rows_per_s / baseline
        tell(f"wire_to_rows_{name}", rows_per_s, "rows/cpu_s", ratio, "upb_loop", digits=0)
        bytes_per_row = statistics.median(one["bytes_per_row"] for one in templates)
        tell(f"stored_row_{name}", bytes_per_row, "bytes", bytes_per_row / STORED_ROW_BYTES, "5_bytes", digits=2)


if __name__ == "__main__":
    if len(sys.argv) == 4:
        with (
            tempfile.TemporaryDirectory(prefix="headroom-bench-") as scratch,
            running_clickhouse(Path(scratch) / "store") as server,
        ):
            print(json.dumps(measured(Path(scratch), server, sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
    else:
        main()
