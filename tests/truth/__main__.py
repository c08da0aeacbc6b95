"""Real clients with scripted rates and limits against three real brokers through two gateways; quota-headroom over it.

    python -m tests.truth [WINDOW_S PHASE_S], whole minutes

The script has three phases after a warm-up: a ramp to the limit, bursts, a shared bucket with a greedy member, a limit
lowered and raised, a partition moved to another broker, a client at both gateways, one without telemetry, one that
stops pushing, a silent one, quiet ones; a consumer that falls behind and one that is throttled without harm, a producer
that loses records, bad roll-outs, and clients whose broker a heavy one keeps busy. Exits 1 unless precision and recall
of the flagged windows, and the shares of right brokers, culprits, reasons, impacts, causes and victims are at least
0.95.
"""

import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from headroom.demo.jars import find_java, kafka_libs
from quota_metrics.verdict.victims import ClientUsage, victims
from tests.kit.clickhouse import RunningClickHouse, connected, running_clickhouse
from tests.truth import field
from tests.truth.score import SHARES, Row, score, victim_windows
from tests.truth.script import PHASES

_ROWS = """
SELECT toUnixTimestamp(window_start) AS window_start, quota_key, client_id, broker_id, level, reason, culprit_client_id,
       impact, impact_reason, cause, instances, utilization, utilization_p95, throttled_s
FROM headroom.quota_utilization_committed WHERE cluster = {cluster:String} ORDER BY window_start, client_id"""


def main() -> int:
    window_s, phase_s = (int(part) for part in sys.argv[1:3]) if len(sys.argv) > 2 else (60, 240)
    java, started_s = find_java(), time.monotonic()

    def tell(text: str) -> None:
        print(f"{time.monotonic() - started_s:4.0f} s  {text}", flush=True)

    with tempfile.TemporaryDirectory() as scratch, running_clickhouse(Path(scratch) / "data") as clickhouse:
        begin_s = field.run(java, kafka_libs(java), clickhouse, Path(scratch), (window_s, phase_s), tell)
        tell("running quota-headroom")
        rows = job(clickhouse, begin_s, begin_s + PHASES * phase_s, window_s)
        slowed = [
            {**row, "window_start": begin_s + start}
            for start in victim_windows(window_s, phase_s)
            for row in victims_of(clickhouse, begin_s + start)
        ]
    found = score(rows, slowed, begin_s, window_s, phase_s)
    for fault in found.faults:
        tell(fault)
    shares = " ".join(f"{name}={getattr(found, name):.3f}" for name in SHARES)
    tell(f"truth {shares} windows={found.windows} unscored={found.unscored}")
    return 0 if found.passed else 1


def job(clickhouse: RunningClickHouse, from_s: int, to_s: int, window_s: int) -> list[Row]:
    """Rows of quota-headroom over the time."""
    where = ["--url", clickhouse.url, "--cluster", field.CLUSTER, "--from", str(from_s), "--to", str(to_s)]
    command = [sys.executable, "-m", "headroom", "job", "quota-headroom", *where, "--window", str(window_s)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with connected(clickhouse.writer) as client:
        return list(client.query(_ROWS, {"cluster": field.CLUSTER}).named_results())


def victims_of(clickhouse: RunningClickHouse, window_start_s: int) -> list[Row]:
    """The victims of a window, as a report that ends with it has them."""
    read = (
        "SELECT source, broker_id, user, client_id, quota_key, usage,"
        " toInt64(toUnixTimestamp(window_start)) AS start_s,"
        " throttled_s > 0 OR ifNull(client_throttle_ms_max, 0) > 0 AS is_throttled,"
        " request_latency_ms_max AS latency_ms"
        " FROM headroom.quota_utilization_committed"
        " WHERE cluster = {cluster:String} AND window_start <= toDateTime({until_s:Int64})"
    )
    with connected(clickhouse.writer) as client:
        rows = client.query(read, {"cluster": field.CLUSTER, "until_s": window_start_s}).result_rows
    usage, latencies = [], defaultdict[Any, dict[int, float]](dict)
    for source, broker_id, user, client_id, quota_key, rate, start_s, is_throttled, latency_ms in rows:
        broker = (field.CLUSTER, source, broker_id)
        usage.append(ClientUsage(broker, (user, client_id), quota_key, start_s, rate, bool(is_throttled)))
        if latency_ms is not None:
            latencies[field.CLUSTER, source, (user, client_id)][start_s] = latency_ms
    newest_s = max((of_client.window_start_ms for of_client in usage), default=0)
    return [victim._asdict() for victim in victims(usage, latencies, newest_s)]


if __name__ == "__main__":
    sys.exit(main())
