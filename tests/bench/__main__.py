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
    failed = []
    with target.open("w") as lines:
        for module in MODULES:
            begun = time.monotonic()
            reported, fault = run(module)
            figures = [figure for line in reported.splitlines() if (figure := FIGURE.fullmatch(line))]
            if not fault and not figures:
                fault = "it printed no figure"
            if fault:
                failed.append(module)
            print(f"{module}: {time.monotonic() - begun:.0f} s {fault}".rstrip(), file=sys.stderr, flush=True)
            for figure in figures:
                print(figure[0], flush=True)
                numbers = {key: float(figure[key]) for key in ("value", "ratio")}
                named = {"name": figure["name"], "unit": figure["unit"], "baseline": figure[5]}
                lines.write(json.dumps(named | numbers) + "\n")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def run(module: str) -> tuple[str, str]:
    """What it printed, also when it failed, and why it failed. A module that is too slow gets SIGKILL, as do its
    children, which die with it."""
    name, *arguments = module.split()
    arguments += sys.argv[1:] if module == "spark_jobs" else []
    command = [sys.executable, "-m", f"tests.bench.{name}", *arguments]
    try:
        ended = subprocess.run(command, stdout=subprocess.PIPE, check=False, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired as late:
        return (late.stdout or b"").decode(), f"not ended after {TIMEOUT_S} s"
    return ended.stdout.decode(), f"exit status {ended.returncode}" if ended.returncode else ""


if __name__ == "__main__":
    sys.exit(main())
