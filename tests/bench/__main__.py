"""`make bench`: lines `bench NAME value=V unit=U ratio=R baseline=WHAT`, the same in build/bench.jsonl, and
docs/performance.md from it.

python -m tests.bench [MODULE ...] [ROWS ...]: these modules only, whose figures replace those of earlier runs; the
sizes for tests.bench.spark_jobs
"""

import json
import os
import re
import subprocess
import sys
import time

from tests.bench.kit.serve import builds
from tests.bench.performance import FIGURES, Figure, write_page

# Each prints its figures and measures its baseline in the same run.
MODULES = (
    "frames",
    "frames tls",
    "frames topics",
    "shapes",
    "wire_to_rows",
    "whole_way",
    "instances",
    "latency",
    "quotas.apply",
    "quotas.minutes",
    "quotas.neighbours",
    "live_views",
    "web.pages",
    "spark_jobs",
    "spark.cluster",
    "forecast",
)
COMPILED = ("quotas.minutes", "quotas.neighbours", "spark_jobs")  # whose own process computes, as wheel and image do
TIMEOUT_S = 1800
FIGURE = re.compile(r"bench (?P<name>\S+) value=(?P<value>\S+) unit=(?P<unit>\S+) ratio=(?P<ratio>\S+) baseline=(\S+)")


def main() -> int:
    rows = [argument for argument in sys.argv[1:] if argument.isdigit()]
    asked = [argument for argument in sys.argv[1:] if argument not in rows]
    describe = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    commit = subprocess.run(describe, stdout=subprocess.PIPE, text=True, check=False).stdout.strip() or "unknown"
    failed = []
    found: list[Figure] = []
    for module in [each for each in MODULES if not asked or each.split()[0] in asked]:
        begun = time.monotonic()
        reported, fault = run(module, rows)
        figures = [figure for line in reported.splitlines() if (figure := FIGURE.fullmatch(line))]
        if not fault and not figures:
            fault = "it printed no figure"
        if fault:
            failed.append(module)
        print(f"{module}: {time.monotonic() - begun:.0f} s {fault}".rstrip(), file=sys.stderr, flush=True)
        for figure in figures:
            print(figure[0], flush=True)
            value, ratio = float(figure["value"]), float(figure["ratio"])
            found.append(Figure(figure["name"], value, figure["unit"], ratio, figure[5], commit))
    FIGURES.parent.mkdir(exist_ok=True)
    names = {figure.name for figure in found}
    lines = FIGURES.read_text().splitlines() if asked and FIGURES.exists() else []
    earlier = [line for line in lines if json.loads(line)["name"] not in names]  # that were not measured again
    FIGURES.write_text("".join(f"{line}\n" for line in [*earlier, *(json.dumps(each._asdict()) for each in found)]))
    write_page()
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def run(module: str, rows: list[str]) -> tuple[str, str]:
    """What it printed, also when it failed, and why it failed. A module that is too slow gets SIGKILL, as do its
    children, which die with it."""
    name, *arguments = module.split()
    arguments += rows if module == "spark_jobs" else []
    command = [sys.executable, "-m", f"tests.bench.{name}", *arguments]
    environment = os.environ | ([*builds().values()][-1] if name in COMPILED else {})
    try:
        ended = subprocess.run(command, stdout=subprocess.PIPE, check=False, timeout=TIMEOUT_S, env=environment)
    except subprocess.TimeoutExpired as late:
        return (late.stdout or b"").decode(), f"not ended after {TIMEOUT_S} s"
    return ended.stdout.decode(), f"exit status {ended.returncode}" if ended.returncode else ""


if __name__ == "__main__":
    sys.exit(main())
