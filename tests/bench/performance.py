"""The goals of the figures, and docs/performance.md, which `make bench` writes from build/bench.jsonl.

python -m tests.bench.performance writes the page again.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple

FIGURES = Path("build") / "bench.jsonl"
PAGE = Path(__file__).parents[2] / "docs" / "performance.md"

# Limits that benches also compare their figures with.
VIEW_MS, PAGE_MS, WHAT_IF_MS = 100.0, 200.0, 2000.0
NEW_FLEET_ROWS, STEADY_ROWS = 250_000, 400_000
INSTANCE_BYTES, STORED_ROW_BYTES = 1024, 5
JOB_PEAK_MIB = 1536.0


class Figure(NamedTuple):
    """A line of build/bench.jsonl."""

    name: str
    value: float
    unit: str
    ratio: float
    baseline: str
    commit: str


class Row(NamedTuple):
    """A row of the page: of the figures whose names match, the one that is worst for the goal.

    `goal` limits the value or the ratio; without a goal the row only informs. `beside` begins the
    baseline's name.
    """

    what: str
    figures: str
    kind: Literal["at least", "at most"] = "at most"
    of: Literal["value", "ratio"] = "value"
    goal: float | None = None
    beside: str = ""

    def worst(self, figures: Iterable[Figure]) -> Figure | None:
        matching = [f for f in figures if re.fullmatch(self.figures, f.name) and f.baseline.startswith(self.beside)]
        choose = min if self.kind == "at least" else max
        return choose(matching, key=self.measured, default=None)

    def measured(self, figure: Figure) -> float:
        return figure.ratio if self.of == "ratio" else figure.value

    def met(self, figure: Figure) -> str:
        if self.goal is None:
            return ""
        measured = self.measured(figure)
        return "met" if (measured >= self.goal if self.kind == "at least" else measured <= self.goal) else "**not met**"


ROWS = (
    Row("pushes of 500 B and 3 kB, 100 to 4,000 connections", "push_.*_compiled", "at least", "ratio", 0.85),
    Row("frames from 16 kB up, beside a blind copy", r"frames_(16k|100k|1M)B_.*", "at least", "ratio", 0.91, "blind"),
    Row("the same, beside kroxylicious", r"frames_(16k|100k|1M)B_.*", "at least", "ratio", 1.0, "kroxylicious"),
    Row("the same over TLS, blind copy", r"frames_tls_(16k|100k|1M)B_.*", "at least", "ratio", 0.91, "blind"),
    Row("the same over TLS, kroxylicious", r"frames_tls_(16k|100k|1M)B_.*", "at least", "ratio", 1.0, "kroxylicious"),
    Row("topics of 1 % of the frames read, beside none", r"frames_topics_.*", "at least", "ratio", 0.97, "headroom"),
    Row("latency added to a frame of 200 B, p99", "added_p99_200B", "at most", "ratio", None, "blind"),
    Row("an idle connection with its upstream", "idle_connection_of_.*", "at most", "value", None, "blind"),
    Row("a client instance in memory", "instance.*_[0-9]+", "at most", "value", INSTANCE_BYTES),
    Row("a push while ingest runs at half its peak, p50, p99", "push_p.*_at_half_peak", "at most", "ratio", 1.5),
    Row("sockets to merged rows, new series or a restart", "whole_way_.*fleet.*", "at least", "value", NEW_FLEET_ROWS),
    Row("sockets to merged rows, steady", "whole_way_steady", "at least", "value", STEADY_ROWS),
    Row("spool to ClickHouse, Java's payloads", "wire_to_rows_java.*", "at least", "value", 500_000),
    Row("a stored row", "stored_row_.*", "at most", "value", STORED_ROW_BYTES),
    Row("1,000 quotas applied, kafka-configs.sh", "quotas_apply_1000", "at most", "value", 10.0, "kafka-configs"),
    Row("the levels of a minute without a client", "minute_of_0", "at most", "value", 0.1),
    Row("the levels of a minute of 10,000 clients", "minute_of_10000", "at most", "value", 0.7),
    Row("the levels of a minute of 100,000 clients", "minute_of_100000", "at most", "value", 5.0),
    Row("two services over one store, beside one", "two_services_of_.*", "at most", "ratio", 1.1),
    Row("a frame of 200 B beside 100,000 clients, p99", "frame_p99_beside_100000", "at most", "ratio", 1.05),
    Row("a throttled client is shown, p95", "throttled_shown_of_.*_p95", "at most", "value", 15.0),
    Row("live views over 10 M rows, p50", "(view_.*|client_metric_hour)_p50_ms", "at most", "value", VIEW_MS),
    Row("pages and API over 10 M rows, p95", "(?!.*what_if).*_p95_ms", "at most", "value", PAGE_MS, "goal"),
    Row("what-if over 10 M rows, p95", ".*what_if.*_p95_ms", "at most", "value", WHAT_IF_MS, "goal"),
    Row("quota-headroom's windows beside plain SQL", "spark_quota_.*_windows", "at most", "ratio", 1.5),
    Row("the job over 1 M and 10 M rows, of 14 and 30 CPU-s", "spark_quota_.*_spark", "at most", "ratio", 1.0),
    Row("the job on a cluster beside a local one", "spark_cluster_.*_cpu", "at most", "ratio", 1.4),
    Row("quota-headroom, memory of its processes", "spark_.*_peak_memory", "at most", "value", JOB_PEAK_MIB),
    Row("forecast, Brier score at 5 min to 7 d, pinball", "forecast_(brier|pin).*", "at most", "ratio", 1.0),
    Row("forecast, precision and recall at 5 min to 7 d", "forecast_(prec|rec).*", "at least", "ratio", 1.0),
)

_HEAD = """\
# Performance

Written by `make bench` from `build/bench.jsonl`; the goals are a table in `tests/bench/performance.py`. Each bench
measures its baseline in the same run, because machines differ. Where a row stands for several figures, it shows the
worst of them. A row that was not measured again keeps its last figure, with its commit.

| what | value | ratio to its baseline | goal | | commit |
|---|---|---|---|---|---|
"""


def page(figures: Iterable[Figure], before: str) -> str:
    """docs/performance.md; `before`: the page whose rows stay that have no figure."""
    kept = {line.split(" | ")[0].removeprefix("| "): f"{line}\n" for line in before.splitlines()}
    lines = (_line(row, figure) if (figure := row.worst(figures)) else kept.get(row.what, "") for row in ROWS)
    return _HEAD + "".join(lines)


def write_page() -> None:
    figures = [Figure(**json.loads(line)) for line in FIGURES.read_text().splitlines()]
    PAGE.write_text(page(figures, PAGE.read_text()))


def _line(row: Row, figure: Figure) -> str:
    baseline = figure.baseline.partition(":")[0].replace("_", " ")
    of_goal = baseline.startswith(("goal", "1 KiB", "5 bytes"))
    ratio = "" if of_goal else f"{figure.ratio:.2f} of {baseline}"
    unit = "" if row.of == "ratio" or row.goal is None else f" {figure.unit}"
    goal = "" if row.goal is None else f"{row.kind} {row.goal:,.2f}".rstrip("0").rstrip(".") + unit
    digits = 0 if figure.value >= 1000 else 1 if figure.value >= 10 else 2
    cells = (row.what, f"{figure.value:,.{digits}f} {figure.unit}", ratio, goal, row.met(figure), f"`{figure.commit}`")
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    write_page()
