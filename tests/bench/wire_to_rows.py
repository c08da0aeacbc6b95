"""Rows per CPU-second from spooled wire bytes to ClickHouse, with templates and with the plain loop over protobuf
objects.

python -m tests.bench.wire_to_rows
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

from tests.bench.figure import tell
from tests.bench.performance import STORED_ROW_BYTES

RUNS = 2
WITH_TEMPLATES, WITHOUT = 128 << 20, 0
FLEETS = {"java": ("java-4.3.1-producer.zst", 20), "librdkafka": ("librdkafka-2.16.0-consumer.zst", 40)}


def run(vector: str, turns: int, template_bytes: int) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.bench.kit.pipeline", vector, str(turns), str(template_bytes)]
    found: dict[str, float] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return found


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
    main()
