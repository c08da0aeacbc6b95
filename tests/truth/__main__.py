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
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from headroom.demo.broker import LocalCluster
from headroom.demo.jars import find_java, kafka_libs
from headroom.demo.jvm import ADMIN_TIMEOUT_S, Admin, Jvm
from quota_metrics.verdict.victims import ClientUsage, victims
from tests.kit.clickhouse import RunningClickHouse, connected, running_clickhouse
from tests.kit.kafka.client_jars import client_libs
from tests.kit.serving import Served
from tests.truth.clients import Fleet
from tests.truth.score import SHARES, Row, score, victim_windows
from tests.truth.script import CLIENTS, HEAVY, OLD_JAVA, PHASES, SHARED_LIMIT, WARM_UP_PHASES, Client

CLUSTER = "truth"
USER = "ANONYMOUS"
PUSH_INTERVAL_MS = 5_000
STORED_AFTER_S = 4.0
CACHE = Path(".cache")
# Small fetch responses: a throttled consumer is muted for short times and reads evenly.
BROKER = {"fetch.max.bytes": "32768", "num.io.threads": "1"}
# The broker compresses its records anew, in the thread that answers all clients.
SLOW_TOPIC = {"compression.type": "gzip", "compression.gzip.level": "9", "max.message.bytes": "13000000"}
Tell = Callable[[str], None]
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
        begin_s = played(java, kafka_libs(java), clickhouse, Path(scratch), (window_s, phase_s), tell)
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
    where = ["--url", clickhouse.url, "--cluster", CLUSTER, "--from", str(from_s), "--to", str(to_s)]
    command = [sys.executable, "-m", "headroom", "job", "quota-headroom", *where, "--window", str(window_s)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with connected(clickhouse.writer) as client:
        return list(client.query(_ROWS, {"cluster": CLUSTER}).named_results())


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
        rows = client.query(read, {"cluster": CLUSTER, "until_s": window_start_s}).result_rows
    usage, latencies = [], defaultdict[Any, dict[int, float]](dict)
    for source, broker_id, user, client_id, quota_key, rate, start_s, is_throttled, latency_ms in rows:
        broker = (CLUSTER, source, broker_id)
        usage.append(ClientUsage(broker, (user, client_id), quota_key, start_s, rate, bool(is_throttled)))
        if latency_ms is not None:
            latencies[CLUSTER, source, (user, client_id)][start_s] = latency_ms
    newest_s = max((of_client.window_start_ms for of_client in usage), default=0)
    return [victim._asdict() for victim in victims(usage, latencies, newest_s)]


def played(
    java: str, libs: Path, clickhouse: RunningClickHouse, directory: Path, times: tuple[int, int], tell: Tell
) -> int:
    """Plays the script in phases of `times[1]` seconds; returns the time (epoch) of its second 0, a multiple of the
    window `times[0]`."""
    window_s, phase_s = times
    with ExitStack() as stack:
        tell("starting three brokers, a JVM and two gateways")
        cluster = stack.enter_context(LocalCluster(java, libs, nodes=3, properties=BROKER))
        jvm = stack.enter_context(Jvm(java, libs))
        with Admin(jvm, cluster.bootstrap) as admin, closing(jvm.admin(cluster.bootstrap)) as java_admin:
            new_topic = jvm.classes.org.apache.kafka.clients.admin.NewTopic
            topics = [
                new_topic(client.name, {number: [broker] for number, broker in enumerate(client.brokers)}).configs(
                    SLOW_TOPIC if client.name == HEAVY else {}
                )
                for client in CLIENTS
                if not client.reads
            ]
            _wait(jvm, java_admin.createTopics(topics).all())
            admin.alter_quota({"user": USER}, {CLIENTS[0].quota_key: SHARED_LIMIT})
            for client in CLIENTS:
                if not client.is_shared:
                    _set_limit(admin, client, 0)
            admin.set_subscription("truth", "org.apache.kafka.", PUSH_INTERVAL_MS)
        bootstraps = []
        for name in ("first", "second"):
            (directory / name).mkdir()
            where = ["--upstream", cluster.bootstrap, "--cluster", CLUSTER, "--gateway-id", name]
            served = Served(directory / name, *where, environment=clickhouse.environment)
            bootstraps.append(stack.enter_context(served).kafka)
        old_libs = client_libs(java, OLD_JAVA, CACHE / f"kafka-clients-{OLD_JAVA}", tell)
        old_jvm = stack.enter_context(Jvm(java, old_libs))
        fleet = Fleet(jvm, old_jvm, bootstraps, CLIENTS, phase_s)
        stack.callback(fleet.stop)
        fleet.wait_ready()
        earliest = int(time.time()) + 1 + WARM_UP_PHASES * phase_s
        begin_s = earliest + -earliest % window_s
        fleet.begin(begin_s)
        tell(f"{len(CLIENTS)} clients run; the first phase begins in {begin_s - time.time():.0f} s")
        for phase in range(PHASES):
            _pause_until(begin_s + phase * phase_s, fleet)
            _change(jvm, cluster.bootstrap, phase)
            tell(f"phase {phase + 1} of {PHASES}")
        _pause_until(begin_s + PHASES * phase_s + STORED_AFTER_S, fleet)
    return begin_s


def _pause_until(moment_s: float, fleet: Fleet) -> None:
    while (left := moment_s - time.time()) > 0:
        time.sleep(min(left, 1.0))
        fleet.check()


def _set_limit(admin: Admin, client: Client, phase: int) -> None:
    admin.alter_quota({"user": USER, "client-id": client.name}, {client.quota_key: client.limit(phase)})


def _change(jvm: Jvm, bootstrap: str, phase: int) -> None:
    """What an operator changes when a phase begins."""
    changed = [client for client in CLIENTS if client.changes(phase)]
    if not changed:
        return
    with Admin(jvm, bootstrap) as admin, closing(jvm.admin(bootstrap)) as java_admin:
        for client in changed:
            if client.limit(phase) != client.limit(phase - 1):
                _set_limit(admin, client, phase)
            if client.broker(phase) != client.broker(phase - 1):
                partition = jvm.classes.org.apache.kafka.common.TopicPartition(client.name, 0)
                target = jvm.classes.org.apache.kafka.clients.admin.NewPartitionReassignment([client.broker(phase)])
                moves = jvm.classes.java.util.HashMap()
                moves.put(partition, jvm.classes.java.util.Optional.of(target))
                _wait(jvm, java_admin.alterPartitionReassignments(moves).all())


def _wait(jvm: Jvm, future: Any) -> None:
    future.get(ADMIN_TIMEOUT_S, jvm.classes.java.util.concurrent.TimeUnit.SECONDS)


if __name__ == "__main__":
    sys.exit(main())
