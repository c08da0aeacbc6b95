"""Rows per CPU-second from spooled wire bytes to ClickHouse, with templates and with the plain loop over protobuf
objects.

python -m tests.bench.wire_to_rows
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

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
        print(
            f"bench wire_to_rows_{name} value={rows_per_s:.0f} unit=rows/cpu_s ratio={ratio:.2f} baseline=upb_loop",
            flush=True,
        )
        bytes_per_row = statistics.median(one["bytes_per_row"] for one in templates)
        print(
            f"bench stored_row_{name} value={bytes_per_row:.2f} unit=bytes ratio={bytes_per_row / 5:.2f}"
            " baseline=5_bytes",
            flush=True,
        )


if __name__ == "__main__":
    main()
