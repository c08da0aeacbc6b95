"""Two gateways with one broker and one store: their usage adds up to the broker's, and one may be killed."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer

from headroom.cli.gateway_share import run_share
from headroom.cli.serve_api import ask
from headroom.demo.kit.admin import Admin
from headroom.demo.kit.broker import LocalCluster
from headroom.demo.kit.jvm import Jvm
from headroom.demo.kit.processes import LOOPBACK, free_ports
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.consumed import values_of
from tests.kit.serving import PATIENCE_S, Served, eventually, rows
from tests.quota_metrics.measure.quota_truth import agents

pytestmark = [pytest.mark.kafka, pytest.mark.java, pytest.mark.clickhouse]

CLUSTER = "two-gateways"
USER = "ANONYMOUS"
SPREAD, HALF = "spread", "half"  # clients at both gateways; one at a gateway and one at the broker itself
HOT = "hot"  # above its byte rate only at both gateways together, and under a request quota, too
SAMPLES = 15  # seconds in which the broker's JMX was read
TICK_S = 0.05
RECORD_BYTES = 10_000


class Two(NamedTuple):
    """`brokers`: the address of the cluster itself."""

    brokers: str
    first: Served
    second: Served
    store: RunningClickHouse


@pytest.fixture
def two(
    java: str,
    kafka_libs: Path,
    jvm: Jvm,
    clickhouse: RunningClickHouse,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[Two]:
    (jolokia,) = free_ports(1)
    jar = agents(java, request.config.rootpath / ".cache") / "jolokia-agent-jvm-2.5.1.jar"
    options = [f"-javaagent:{jar}=port={jolokia},host={LOOPBACK},discoveryEnabled=false"]
    target = {"broker_id": 1, "agent": "jolokia", "url": f"http://{LOOPBACK}:{jolokia}/jolokia/"}
    monkeypatch.setenv("HEADROOM_CLICKHOUSE_PASSWORD", clickhouse.server.password)
    with ExitStack() as stack:
        kafka = stack.enter_context(LocalCluster(java, kafka_libs, jvm_options=options))
        with Admin(jvm, kafka.bootstrap) as admin:
            admin.create_topics(["load", "kept"])
            for client_id in (SPREAD, HALF):
                admin.alter_quota({"user": USER, "client-id": client_id}, {"producer_byte_rate": 1_000_000.0})
            admin.alter_quota({"user": USER, "client-id": HOT}, {"producer_byte_rate": 200_000.0})
            admin.alter_quota({"user": USER, "client-id": HOT}, {"request_percentage": 190.0})
        store = f"http://headroom_writer@{clickhouse.host}:{clickhouse.port}/headroom"
        arguments = ["--upstream", kafka.bootstrap, "--cluster", CLUSTER, "--clickhouse", store]
        served: list[Served] = []
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
            served.append(stack.enter_context(Served(tmp_path / name, *arguments, "--gateway-id", name)))
            monkeypatch.setenv("HEADROOM_QUOTAS__JMX__TARGETS", json.dumps([target]))  # the second one reads JMX
            monkeypatch.setenv("HEADROOM_QUOTAS__JMX__INTERVAL_MS", "500")
        first, second = served
        yield Two(kafka.bootstrap, first, second, clickhouse)


def steady(bootstrap: str, client_id: str, done: threading.Event) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": client_id, "linger.ms": 0})
    while not done.wait(TICK_S):
        producer.produce("load", bytes(RECORD_BYTES))
        producer.poll(0)
    producer.purge()


class Kept:
    """The records that the brokers acknowledged to idempotent producers, which know both gateways."""

    def __init__(self, jvm: Jvm, bootstrap: str) -> None:
        self.values: list[bytes] = []
        self._jvm = jvm
        self._java = jvm.producer(bootstrap, "kept-java", enable_idempotence="true")
        self._sent: list[tuple[bytes, Any]] = []
        self._librdkafka = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        self._number = 0

    def run(self, done: threading.Event) -> None:
        """Until `done`, then until all is acknowledged."""
        record = self._jvm.classes.org.apache.kafka.clients.producer.ProducerRecord
        while not done.wait(TICK_S):
            self._number += 1
            value = b"java-%d" % self._number
            self._sent.append((value, self._java.send(record("kept", value))))
            self._librdkafka.produce("kept", b"librdkafka-%d" % self._number, on_delivery=self._delivered)
            self._librdkafka.poll(0)
        assert self._librdkafka.flush(PATIENCE_S) == 0
        self._java.flush()
        self.values += [value for value, sent in self._sent if sent.get().hasOffset()]
        self._java.close()
        assert len(self.values) == 2 * self._number

    @property
    def acknowledged(self) -> tuple[int, int]:
        """Java's and librdkafka's."""
        return sum(sent.isDone() for _, sent in self._sent), len(self.values)

    def _delivered(self, error: Any, message: Any) -> None:
        assert error is None, error
        self.values.append(message.value())


@contextmanager
def running(*clients: Callable[[threading.Event], None]) -> Iterator[None]:
    """Each in a thread, until the block ends. Raises what one of them raised."""
    done = threading.Event()
    with ThreadPoolExecutor(len(clients)) as pool:
        futures = [pool.submit(client, done) for client in clients]
        try:
            yield
        finally:
            done.set()
        for future in futures:
            future.result()


def shares(two: Two) -> dict[str, dict[str, Any]]:
    rows = ask(two.second.http, "/api/v1/gateway-share", {"cluster": CLUSTER, "user": USER})
    return {row["client_id"]: row for row in rows if row["quota_key"] == "producer_byte_rate"}


def are_measured(found: dict[str, dict[str, Any]]) -> bool:
    return (
        {SPREAD, HALF} <= found.keys()
        and found[SPREAD]["samples"] >= SAMPLES
        and abs(found[SPREAD]["share"] - 1.0) < 0.02
        and abs(found[HALF]["share"] - 0.5) < 0.05
    )


def stored(bootstrap: str, count: int) -> Counter[bytes]:
    """Waits for `count` records of the topic, then reads the remaining ones."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "kept", "auto.offset.reset": "earliest"})
    consumer.subscribe(["kept"])
    found: Counter[bytes] = Counter()
    deadline = time.monotonic() + PATIENCE_S
    while (messages := consumer.consume(500, 1.0)) or found.total() < count:
        found.update(values_of(messages))
        assert time.monotonic() < deadline, f"{found.total()} of {count} records"
    consumer.close()
    return found


def test_usage_of_two_gateways_adds_up_and_one_may_be_killed(
    two: Two, jvm: Jvm, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = Kept(jvm, f"{two.first.kafka},{two.second.kafka}")
    clients = [
        lambda done, to=to, who=who: steady(to, who, done)
        for to, who in (
            (two.first.kafka, SPREAD),
            (two.second.kafka, SPREAD),
            (two.first.kafka, HALF),
            (two.brokers, HALF),
        )
    ]
    with running(*clients, kept.run):
        found = eventually(lambda: shares(two), are_measured)
        assert found[HALF]["bypassing_rate"] == pytest.approx(found[HALF]["broker_rate"] / 2, rel=0.1)
        run_share(two.second.http, {"cluster": CLUSTER, "client_id": SPREAD})
        assert SPREAD in capsys.readouterr().out
        two.first.process.kill()
        before = kept.acknowledged
        eventually(lambda: kept.acknowledged, lambda now: now[0] > before[0] + 20 and now[1] > before[1] + 20)
    assert stored(two.brokers, len(kept.values)) == Counter(kept.values)


def test_quota_of_a_client_at_both_gateways_is_named(two: Two) -> None:
    """The broker's Produce quota throttles; each gateway sees half of the limit, and a request quota applies, too."""

    def muted_ms() -> dict[str, int]:
        query = (
            "SELECT quota_key, sum(muted_ms) FROM headroom.quota_usage FINAL"
            f" WHERE cluster = '{CLUSTER}' AND client_id = '{HOT}' AND source = 'gateway' GROUP BY quota_key"
        )
        return {str(quota_key): int(muted) for quota_key, muted in rows(two.store.url.partition("//")[2], query)}

    clients = [lambda done, to=to: steady(to, HOT, done) for to in (two.first.kafka, two.second.kafka)]
    with running(*clients):
        found = eventually(muted_ms, lambda found: found.get("producer_byte_rate", 0) > 40_000)
    assert found.get("request_percentage", 0) < 4_000  # before the gateways knew of each other
