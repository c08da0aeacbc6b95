"""Kafka's own performance tools and Kafka Streams (exactly once) through the gateway, unmodified."""

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from headroom.demo.broker import LocalCluster
from headroom.demo.jars import KAFKA_VERSION, fetch_once
from headroom.demo.jvm import Admin, Jvm
from tests.kit.serving import PATIENCE_S, eventually
from tests.telemetry.conftest import RunningGateway

pytestmark = [pytest.mark.kafka, pytest.mark.java]

RECORDS = 3_000
_IN_MEMORY = "org.apache.kafka.streams.state.BuiltInDslStoreSuppliers$InMemoryDslStoreSuppliers"

# Without RocksDB (70 MB): the topology below keeps its state in memory.
_STREAMS = f'<dependency org="org.apache.kafka" name="kafka-streams" rev="{KAFKA_VERSION}" transitive="false"/>'


@pytest.fixture(scope="module")
def streams_jvm(
    java: str, kafka_libs: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Jvm]:
    """A JVM with Kafka Streams beside the other classes."""
    streams = request.config.rootpath.absolute() / ".cache" / f"kafka-{KAFKA_VERSION}" / "streams" / "libs"
    fetch_once(java, streams, _STREAMS, print, "Kafka Streams")
    libs = tmp_path_factory.mktemp("streams")
    for jar in (*kafka_libs.glob("*.jar"), *streams.glob("*.jar")):
        (libs / jar.name).symlink_to(jar)
    with Jvm(java, libs) as running:
        yield running


def test_performance_tools_run_through_the_gateway(
    jvm: Jvm, kafka: LocalCluster, gateway: RunningGateway, new_topic: Callable[[], str]
) -> None:
    topic, tools = new_topic(), jvm.classes.org.apache.kafka.tools
    properties = ["--command-property", f"bootstrap.servers={gateway.bootstrap}", "client.id=perf-producer"]
    sizes = ["--num-records", str(RECORDS), "--record-size", "1000", "--throughput", "-1"]
    tools.ProducerPerformance.main(jvm.strings(["--topic", topic, *sizes, *properties]))
    arguments = ["--bootstrap-server", gateway.bootstrap, "--topic", topic, "--num-records", str(RECORDS)]
    tools.ConsumerPerformance.main(jvm.strings([*arguments, "--timeout", "120000", "--group", topic]))
    assert committed(kafka.bootstrap, topic, topic) == RECORDS
    assert "perf-producer" in {client_id for _, client_id in gateway.meter.clients()}


def committed(bootstrap: str, topic: str, group: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    (position,) = consumer.committed([TopicPartition(topic, 0)], PATIENCE_S)
    consumer.close()
    return int(position.offset)


@pytest.mark.release
def test_streams_counts_exactly_once(
    streams_jvm: Jvm, kafka: LocalCluster, kafka_admin: Admin, gateway: RunningGateway, tmp_path: Path
) -> None:
    """Counts words; the application is closed in the middle and resumes from its changelog."""
    name = f"count-{uuid.uuid4().hex[:8]}"
    kafka_admin.create_topics([f"{name}-words", f"{name}-counts"], partitions=2)
    words = [b"word-%d" % (number % 7) for number in range(700)]
    produce(gateway.bootstrap, f"{name}-words", words[:350])
    with_streams(streams_jvm, gateway.bootstrap, name, tmp_path / "one", 350)
    produce(gateway.bootstrap, f"{name}-words", words[350:])
    with_streams(streams_jvm, gateway.bootstrap, name, tmp_path / "two", 700)
    counted = counts(kafka.bootstrap, f"{name}-counts")
    assert len(counted) == 700
    assert sorted(counted) == sorted((word, number) for word in set(words) for number in range(1, 101))


def produce(bootstrap: str, topic: str, words: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for word in words:
        producer.produce(topic, word, key=word)
    assert producer.flush(PATIENCE_S) == 0


def with_streams(jvm: Jvm, bootstrap: str, name: str, state: Path, until: int) -> None:
    """Runs the application until its output holds that many records."""
    kafka = jvm.classes.org.apache.kafka
    serde = "org.apache.kafka.common.serialization.Serdes$StringSerde"
    config = {
        "application.id": name,
        "bootstrap.servers": bootstrap,
        "state.dir": str(state),
        "processing.guarantee": "exactly_once_v2",
        "default.key.serde": serde,
        "default.value.serde": serde,
        "dsl.store.suppliers.class": _IN_MEMORY,
        "statestore.cache.max.bytes": "0",
        "commit.interval.ms": "200",
        "replication.factor": "1",
        # `classic` passes too; its restart waits for the session timeout of the member that was closed.
        "group.protocol": "streams",
    }
    builder = kafka.streams.StreamsBuilder()
    builder.stream(f"{name}-words").groupByKey().count().toStream().to(
        f"{name}-counts",
        kafka.streams.kstream.Produced.valueSerde(kafka.common.serialization.Serdes.Long()),
    )
    running = kafka.streams.KafkaStreams(builder.build(), jvm.properties(config))
    running.start()
    try:
        eventually(lambda: len(counts(bootstrap, f"{name}-counts")), lambda count: count >= until)
    finally:
        running.close(jvm.duration(30_000))


def counts(bootstrap: str, topic: str) -> list[tuple[bytes, int]]:
    config: dict[str, Any] = {"bootstrap.servers": bootstrap, "group.id": f"{topic}-look"}
    consumer = Consumer(config | {"isolation.level": "read_committed", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in (0, 1)])
    counted: list[tuple[bytes, int]] = []
    ends: set[int | None] = set()
    deadline = time.monotonic() + PATIENCE_S
    while len(ends) < 2:
        assert time.monotonic() < deadline
        for message in consumer.consume(500, 0.5):
            if message.error():
                ends.add(message.partition())
            else:
                counted.append((message.key() or b"", int.from_bytes(message.value() or b"", "big")))
    consumer.close()
    return counted
