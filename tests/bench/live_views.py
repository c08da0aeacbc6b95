"""The views of now over 10 M rows of usage and 100 k clients: latency of each query at the SQL endpoint.

python -m tests.bench.live_views [ROWS] [SERIES]

Each view is read as a dashboard reads it: as JSON over HTTP, the first 1,000 rows in the order of a column. Beside them
one metric of one client over an hour, which client_metrics joins with SERIES series. tests.bench.web.pages measures the
pages over the same rows.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from exporters.clickhouse.client import ClickHouse
from tests.bench.figure import tell
from tests.bench.kit.usage_rows import fill
from tests.bench.performance import VIEW_MS
from tests.kit.clickhouse import RunningClickHouse, running_clickhouse

REPEATS = 40
SHOWN = 1_000
VIEWS = {  # and what a dashboard sorts by
    "headroom_now": "level DESC",
    "throttled_now": "muted_ms DESC",
    "near_limit": "level DESC",
    "silent_clients": "silent_s DESC",
    "bad_client_versions": "instances DESC",
    "quota_changes": "changed_at DESC",
    "usage_by_user": "usage DESC",
    "telemetry_coverage": "client_id",
    "quota_groups": "client_id",
    "gateway_share": "bypassing_rate DESC",
}
_METRIC = """
SELECT ts, value, attributes, software_version FROM headroom.client_metrics
WHERE cluster = 'bench' AND metric = 'org.apache.kafka.producer.metric7' AND principal = 'user-42'
  AND client_id = 'busy-42' AND ts > now() - INTERVAL 1 HOUR
"""


def latencies_ms(server: RunningClickHouse, sql: str) -> list[float]:
    """Of each of REPEATS queries, after one that warms the server's caches."""
    took, reader = [], ClickHouse((server.reader,), timeout_s=60)
    for _ in range(REPEATS + 1):
        began = time.perf_counter()
        reader.rows(sql)
        took.append((time.perf_counter() - began) * 1000)
    return took[1:]


def tell_latency(name: str, took_ms: list[float]) -> None:
    p50 = statistics.median(took_ms)
    tell(f"{name}_p50_ms", p50, "ms", p50 / VIEW_MS, f"goal_{VIEW_MS:.0f}_ms")


def main(rows: int, series: int) -> None:
    with tempfile.TemporaryDirectory() as directory, running_clickhouse(Path(directory) / "clickhouse") as server:
        fill(server, rows, series)
        for view, order in VIEWS.items():
            tell_latency(
                f"view_{view}", latencies_ms(server, f"SELECT * FROM headroom.{view} ORDER BY {order} LIMIT {SHOWN}")
            )
        tell_latency("client_metric_hour", latencies_ms(server, _METRIC))


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:] or ("10000000", "1000000")))
