"""Real Java and librdkafka clients that bootstrap from `headroom serve` without a cluster, and the rows they leave."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import orjson
import pytest
from clickhouse_connect.driver.exceptions import ClickHouseError
from confluent_kafka import Consumer, Producer
from typer.testing import CliRunner

from headroom.cli import subscriptions
from headroom.demo.jars import KAFKA_VERSION
from headroom.demo.jvm import Admin, Jvm
from headroom.demo.processes import free_ports
from tests.kit.serving import PATIENCE_S, Served, eventually, rows

pytestmark = [pytest.mark.java, pytest.mark.clickhouse, pytest.mark.release]

FIRST_MS, THEN_MS = 1_000, 4_000
SEVERAL = 3  # pushes of each client under each subscription
JAVA = ["sink-java-consumer", "sink-java-producer"]
LIBRDKAFKA = ["sink-librdkafka-consumer", "sink-librdkafka-producer"]
STAYING = [*JAVA, *LIBRDKAFKA]
WITHOUT_ZSTD = "sink-java-without-zstd"
ALL = sorted([*STAYING, WITHOUT_ZSTD])


class Sink(Served):
    """`headroom serve` without --upstream, on ports and in a directory that stay the same."""

    def __init__(self, directory: Path) -> None:
        self.data = directory / "data"
        kafka, http, sql = (f"127.0.0.1:{port}" for port in free_ports(3))
        super().__init__(directory, "--listen", kafka, "--http", http, "--sql", sql)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return rows(self.sql, query)

    def until(self, query: str, expected: Callable[[list[tuple[Any, ...]]], bool]) -> list[tuple[Any, ...]]:
        """Polls until the rows are as expected; the store may be unavailable for a while."""

        def ask() -> list[tuple[Any, ...]]:
            with suppress(ClickHouseError, OSError):
                return self.rows(query)
            return []

        return eventually(ask, expected)


class Clients:
    """One of each kind, kept busy by threads of their own."""

    def __init__(self, jvm: Jvm, bootstrap: str) -> None:
        self._jvm = jvm
        self._closing = threading.Event()
        self._java_producer = jvm.producer(bootstrap, "sink-java-producer")
        self._java_consumer = jvm.consumer(bootstrap, "sink-java-consumer", "sink", enable_auto_commit="false")
        partition = jvm.classes.org.apache.kafka.common.TopicPartition("no-such-topic", 0)
        self._java_consumer.assign([partition])
        self._java_consumer.seek(partition, 0)  # otherwise it would look up a group coordinator
        config = {"bootstrap.servers": bootstrap, "reconnect.backoff.max.ms": 1_000, "log_level": 2}
        self._producer = Producer(config | {"client.id": "sink-librdkafka-producer"})
        self._consumer = Consumer(config | {"client.id": "sink-librdkafka-consumer", "group.id": "sink"})
        self._consumer.subscribe(["no-such-topic"])
        self._threads = [threading.Thread(target=poll) for poll in (self._poll_java, self._poll_librdkafka)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._closing.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        self._java_consumer.close()
        self._java_producer.close()
        self._consumer.close()
        self._producer.close()

    def _poll_java(self) -> None:
        while not self._closing.is_set():
            self._java_consumer.poll(self._jvm.duration(100))

    def _poll_librdkafka(self) -> None:
        while not self._closing.is_set():
            self._producer.poll(0.05)
            self._consumer.poll(0.05)


@pytest.fixture
def jvm_without_zstd(java: str, kafka_libs: Path, tmp_path: Path) -> Iterator[Jvm]:
    """Java clients that lack the sink's preferred codec: their first push fails, and they change to another codec."""
    libs = tmp_path / "libs-without-zstd"
    libs.mkdir()
    for jar in kafka_libs.glob("*.jar"):
        if not jar.name.startswith("zstd-jni"):
            (libs / jar.name).symlink_to(jar)
    with Jvm(java, libs) as running:
        yield running


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[Sink]:
    running = Sink(tmp_path)
    running.__enter__()
    yield running
    assert running.stop() == 0


def pushed_since(sink: Sink, clients: list[str], since_ms: int, condition: str = "1", least: int = 1) -> dict[str, int]:
    """The subscription id of each client's newest push, once each has `least` in the store that fit the condition."""
    query = f"""
        SELECT client_id, argMax(subscription_id, received_at) FROM headroom.pushes
        WHERE toUnixTimestamp64Milli(received_at) >= {since_ms} AND error_code = 0 AND {condition}
        GROUP BY client_id HAVING count() >= {least} ORDER BY client_id"""
    return dict(sink.until(query, lambda rows: [client for client, _ in rows] == clients))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def wait_for_a_quiet_moment(sink: Sink) -> None:
    """Midway between two pushes of Java clients: one that is cut off during a push stays away for five minutes."""
    clients = ", ".join(f"'{client}'" for client in JAVA)
    query = f"""SELECT max(toUnixTimestamp64Milli(received_at)) % {THEN_MS} AS phase FROM headroom.pushes
                WHERE client_id IN ({clients}) GROUP BY client_id ORDER BY phase"""
    first, second = (phase for (phase,) in sink.rows(query))
    middle = (first + second) // 2 if second - first > THEN_MS // 2 else (second + (THEN_MS - second + first) // 2)
    time.sleep(((middle - now_ms()) % THEN_MS) / 1000)


def preview(sink: Sink, *arguments: str) -> dict[str, Any]:
    options = ["--url", f"http://{sink.sql}", "--bootstrap-server", sink.kafka, "--output", "json"]
    result = CliRunner().invoke(subscriptions.app, ["preview", *arguments, *options])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = orjson.loads(result.stdout)
    return found


def check_previews(sink: Sink) -> None:
    whole = preview(sink, "--name", "all")
    assert [client["client_id"] for client in whole["clients"]] == ALL
    assert all(client["sent_before"] and client["points"] > 5 for client in whole["clients"])
    assert whole["points_per_second"] == sum(client["points"] for client in whole["clients"])  # each second
    prefix = ["--metrics", "org.apache.kafka.producer.", "--interval", "10000"]
    java = "client_id=sink-java-(consumer|producer)"
    part = preview(sink, *prefix, "--match", f"{java},client_source_port=1,principal=ANONYMOUS")
    assert [client["client_id"] for client in part["clients"]] == JAVA
    assert [client["points"] > 0 for client in part["clients"]] == [False, True]
    assert part["known"] == len(ALL)
    assert part["points_per_second"] == part["clients"][1]["points"] / 10
    assert preview(sink, *prefix, "--match", "client_id=nobody")["clients"] == []


class Story(NamedTuple):
    """The history of a client, derived from its pushes in order."""

    subscription_ids: list[int]
    codecs: list[str]
    terminated: bool  # the last push was terminating
    refused: int
    instances: int  # more than one: it stopped pushing and registered again


def stories(sink: Sink) -> dict[str, Story]:
    rows = sink.rows("""
        SELECT client_id, arrayCompact(groupArray(subscription_id)), arrayCompact(groupArray(compression)),
               argMax(terminating, received_at), countIf(error_code != 0), uniqExact(client_instance_id)
        FROM (SELECT * FROM headroom.pushes ORDER BY client_id, received_at) GROUP BY client_id ORDER BY client_id""")
    reported = {client: Story(*story) for client, *story in rows}
    assert {(story.refused, story.instances) for story in reported.values()} == {(0, 1)}
    return reported


def test_clients_continue_through_changes_and_restarts(jvm: Jvm, jvm_without_zstd: Jvm, sink: Sink) -> None:
    with Admin(jvm, sink.kafka) as operator:
        operator.set_subscription("all", "org.apache.kafka.", FIRST_MS)
    begun_ms = now_ms()
    clients = Clients(jvm, sink.kafka)
    without_zstd = jvm_without_zstd.producer(sink.kafka, WITHOUT_ZSTD)
    with closing(clients):
        first = pushed_since(sink, ALL, begun_ms, "points > 5", SEVERAL)
        software = "SELECT DISTINCT client_id, software_name FROM headroom.client_metrics"
        assert dict(sink.rows(software)) == dict.fromkeys(ALL, "apache-kafka-java") | dict.fromkeys(
            LIBRDKAFKA, "confluent-kafka-python"
        )
        libraries = "SELECT library, library_version, instances, known_issue FROM headroom.client_software ORDER BY 1"
        assert sink.rows(libraries) == [
            ("apache-kafka-java", KAFKA_VERSION, 3, ""),
            ("librdkafka", confluent_kafka.libversion()[0], 2, ""),
        ]
        check_previews(sink)

        # An operator changes the file: subscription ids change, and all clients continue.
        file = sink.data / "subscriptions.yaml"
        prefixes = "[org.apache.kafka.producer., org.apache.kafka.consumer.]"
        file.write_text(f"all: {{metrics: {prefixes}, interval.ms: {THEN_MS}}}\n")
        changed = " AND ".join(f"subscription_id != {number}" for number in first.values())
        then = pushed_since(sink, ALL, begun_ms, changed, SEVERAL)

        without_zstd.close()

        # A crash: the same ids at once, because ids are computed from the stored subscriptions.
        wait_for_a_quiet_moment(sink)
        sink.kill()
        sink.__enter__()
        since = {client: then[client] for client in STAYING}
        assert pushed_since(sink, STAYING, now_ms(), least=SEVERAL) == since
    # Java clients send a terminating push only along with another request of the close, which a sink does not get:
    # test_through_headroom.py covers them.
    pushed_since(sink, LIBRDKAFKA, begun_ms, "terminating AND client_id LIKE '%librdkafka%'")
    reported = stories(sink)
    assert {client: story.subscription_ids for client, story in reported.items()} == {
        c: [first[c], then[c]] for c in ALL
    }
    codecs = {client: ["none", "lz4"] if client == WITHOUT_ZSTD else ["zstd"] for client in ALL}
    assert {client: story.codecs for client, story in reported.items()} == codecs
    assert [client for client, story in reported.items() if story.terminated] == LIBRDKAFKA
    assert preview(sink, "--name", "all", "--match", "client_id=.*librdkafka.*")["clients"] == []
