"""Two gateways with one broker and one store: their usage adds up to the broker's, the quota that
throttles a client of both is named, and one may be killed."""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer

from exporters.clickhouse.connection import WRITER
from headroom.cli.gateway import share_command
from headroom.cli.serve_api import ask
from headroom.demo.broker import LocalCluster
from headroom.demo.jvm import Admin, Jvm
from headroom.demo.processes import LOOPBACK, free_ports
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.kafka.records import values_of
from tests.kit.serving import PATIENCE_S, Served, eventually, output_of, rows, running
from tests.quota_metrics.measure.quota_truth import agents, produce_at_times

pytestmark = [pytest.mark.release, pytest.mark.kafka, pytest.mark.java, pytest.mark.clickhouse]

CLUSTER = "two-gateways"
USER = "ANONYMOUS"
SPREAD, HALF = "spread", "half"  # clients at both gateways; one at a gateway and one at the broker itself
HOT = "hot"  # above its byte rate only at both gateways together, and under a request quota, too
SAMPLES = 15  # seconds in which the broker's JMX was read
TICK_S = 0.05


class Two(NamedTuple):
    """`brokers`: the address of the cluster itself; `sql`: that of the store."""

    brokers: str
    first: Served
    second: Served
    sql: str


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
    monkeypatch.setenv("HEADROOM_CLICKHOUSE_PASSWORD", clickhouse.writer.password)
    with ExitStack() as stack:
        kafka = stack.enter_context(LocalCluster(java, kafka_libs, jvm_options=options))
        with Admin(jvm, kafka.bootstrap) as admin:
            admin.create_topics(["load", "kept"])
            for client_id in (SPREAD, HALF):
                admin.alter_quota({"user": USER, "client-id": client_id}, {"producer_byte_rate": 1_000_000.0})
            admin.alter_quota({"user": USER, "client-id": HOT}, {"producer_byte_rate": 200_000.0})
            admin.alter_quota({"user": USER, "client-id": HOT}, {"request_percentage": 190.0})
        arguments = ["--upstream", kafka.bootstrap, "--cluster", CLUSTER, "--clickhouse", clickhouse.writer.url]
        jmx = {"HEADROOM_QUOTAS__JMX__TARGETS": json.dumps([target]), "HEADROOM_QUOTAS__JMX__INTERVAL_MS": "500"}
        served: list[Served] = []
        for name, environment in (("first", {}), ("second", jmx)):
            (tmp_path / name).mkdir()
            gateway = Served(tmp_path / name, *arguments, "--gateway-id", name, environment=environment)
            served.append(stack.enter_context(gateway))
        first, second = served
        yield Two(kafka.bootstrap, first, second, clickhouse.url.partition("//")[2])


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
        partial(produce_at_times, to, "load", who, 1, TICK_S)
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
        share_command(two.second.http, CLUSTER, client_id=SPREAD)
        assert SPREAD in capsys.readouterr().out
        two.first.process.kill()
        before = kept.acknowledged
        eventually(lambda: kept.acknowledged, lambda now: now[0] > before[0] + 20 and now[1] > before[1] + 20)
    assert stored(two.brokers, len(kept.values)) == Counter(kept.values)


@pytest.mark.spark
@pytest.mark.alone
def test_quota_of_a_client_at_both_gateways_is_named(two: Two) -> None:
    """The broker's Produce quota throttles; each gateway sees half of the limit, and a request quota applies, too."""

    def muted_ms() -> dict[str, int]:
        """In the last half of a minute."""
        query = (
            "SELECT quota_key, sum(muted_ms) FROM headroom.quota_usage FINAL"
            f" WHERE cluster = '{CLUSTER}' AND client_id = '{HOT}' AND source = 'gateway'"
            " AND ts > now() - INTERVAL 30 SECOND GROUP BY quota_key HAVING sum(muted_ms) > 0"
        )
        return {str(quota_key): int(muted) for quota_key, muted in rows(two.sql, query)}

    def levels_of_api() -> dict[str, str]:
        found = ask(two.second.http, "/api/v1/headroom", {"cluster": CLUSTER, "client_id": HOT, "source": "gateway"})
        return {row["quota_key"]: row["level"] for row in found}

    def levels_of_minute() -> dict[str, str]:
        """Of the newest one."""
        query = f"""SELECT quota_key, toString(level) FROM headroom.headroom_by_minute
                    WHERE cluster = '{CLUSTER}' AND client_id = '{HOT}' AND source = 'gateway'
                    ORDER BY window_start DESC LIMIT 1 WITH TIES"""
        return {str(quota_key): str(level) for quota_key, level in rows(two.sql, query)}

    clients = [partial(produce_at_times, to, "load", HOT, 1, TICK_S) for to in (two.first.kafka, two.second.kafka)]
    with running(*clients):
        # Only until the gateways know of each other is a throttle time taken for that of the request quota.
        eventually(muted_ms, lambda found: list(found) == ["producer_byte_rate"])
        eventually(levels_of_api, is_right, 2 * PATIENCE_S)  # of 60 seconds after that
        eventually(levels_of_minute, is_right, 2 * PATIENCE_S)  # of a whole minute, as the job's
        query = f"""SELECT quota_key, reason FROM headroom.headroom_now WHERE cluster = '{CLUSTER}'
                    AND client_id = '{HOT}' AND source = 'gateway' AND level IN ('throttled', 'critical')"""
        ((quota_key, reason),) = rows(two.sql, query)
        assert (quota_key, "wants more than producer_byte_rate 200.0 kB/s" in reason) == ("producer_byte_rate", True)
        by_top = json.loads(output_of("top", "--http", two.first.http, "--once", "--output", "json"))
        named = [row["quota_key"] for row in by_top if row["client_id"] == HOT and row["level"] == "throttled"]
        assert named == ["producer_byte_rate"]
        store = ["--url", f"http://{WRITER}@{two.sql}", "--cluster", CLUSTER, "--since", "1m", "--output", "json"]
        by_job = json.loads(output_of("job", "quota-headroom", *store))
        assert is_right({row["quota_key"]: row["level"] for row in by_job if row["client_id"] == HOT})


def is_right(levels: dict[str, str]) -> bool:
    others = {level for quota_key, level in levels.items() if quota_key != "producer_byte_rate"}
    return levels.get("producer_byte_rate") == "throttled" and others <= {"ok"}
