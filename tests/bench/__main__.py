"""`make bench`: lines `bench NAME value=V unit=U ratio=R baseline=WHAT`, and the same in build/bench.jsonl.

python -m tests.bench [ROWS ...]: the sizes for tests.bench.spark_jobs
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

# Each prints its figures and measures its baseline in the same run.
MODULES = (
    "frames",
    "frames tls",
    "acknowledge",
    "shapes",
    "wire_to_rows",
    "whole_way",
    "instances",
    "connections",
    "latency",
    "otlp_in",
    "bombs",
    "quotas.resolution",
    "live_views",
    "web.pages",
    "spark_jobs",
)
TIMEOUT_S = 300
FIGURE = re.compile(r"bench (?P<name>\S+) value=(?P<value>\S+) unit=(?P<unit>\S+) ratio=(?P<ratio>\S+) baseline=(\S+)")


def main() -> int:
    target = Path("build") / "bench.jsonl"
    target.parent.mkdir(exist_ok=True)
    failed = 0
    with target.open("w") as lines:
        for module in MODULES:
            name, *arguments = module.split()
            arguments += sys.argv[1:] if module == "spark_jobs" else []
            command = [sys.executable, "-m", f"tests.bench.{name}", *arguments]
            begun = time.monotonic()
            try:
                reported = subprocess.run(
                    command, stdout=subprocess.PIPE, text=True, check=True, timeout=TIMEOUT_S
                ).stdout
            except subprocess.SubprocessError as exc:
                print(exc, file=sys.stderr)
                failed += 1
                continue
            print(f"{module}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
            for line in reported.splitlines():
                if figure := FIGURE.fullmatch(line):
                    print(line, flush=True)
                    numbers = {key: float(figure[key]) for key in ("value", "ratio")}
                    named = {"name": figure["name"], "unit": figure["unit"], "baseline": figure[5]}
                    lines.write(json.dumps(named | numbers) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
