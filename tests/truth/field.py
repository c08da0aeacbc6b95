"""Three real brokers, ClickHouse, two gateways and the clients of the script; changes of limits and partitions."""

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from headroom.demo.broker import LocalCluster
from headroom.demo.jvm import ADMIN_TIMEOUT_S, Admin, Jvm
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.kafka.client_jars import client_libs
from tests.kit.serving import Served
from tests.truth.clients import Fleet
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


def run(
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
