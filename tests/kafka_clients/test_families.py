"""Further client versions and kinds through `headroom serve`, in front of three brokers that they must never reach."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import kafka as kafka_python
import psutil
import pytest
from confluent_kafka import Consumer, Producer
from kafka.record import MemoryRecordsBuilder
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v18 import request as fetch
from kio.static.primitive import i32, i32Timedelta, i64

from headroom.demo.broker import LocalCluster
from headroom.demo.jvm import Admin, Jvm
from headroom.demo.scenario import Serving
from quota_metrics.kafka.connection import ConnectionOptions, KafkaConnection
from quota_metrics.kafka.frames import NegotiatedRequest
from telemetry.wire.apis import FETCH, METADATA, PRODUCE
from tests.kafka_clients.conftest import PATIENCE_S, RECORDS, pushed
from tests.kit.kafka.client_jars import client_libs
from tests.kit.kafka.records import consumed_by_java, consumed_by_librdkafka, consumed_by_python, produced_by_java
from tests.kit.kio_entities import decode, encode, entity_of_fields, message_type
from tests.kit.raw_connection import RawConnection
from tests.kit.serving import eventually, running

pytestmark = [pytest.mark.release, pytest.mark.kafka, pytest.mark.java, pytest.mark.clickhouse]

OLD_JAVA = "3.7.2"  # the first Java client with telemetry
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
LOOK_S = 0.05
PARTITIONS = 3
# A stopped broker is detected soon; groups and transactions survive the loss of one broker.
QUICK_CHANGES = {"broker.session.timeout.ms": "6000", "broker.heartbeat.interval.ms": "500"}
REPLICATED = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "share.coordinator.state.topic.replication.factor": "3",
}


@pytest.fixture(scope="module")
def brokers(java: str, kafka_libs: Any) -> Iterator[LocalCluster]:
    with LocalCluster(java, kafka_libs, nodes=3, properties=QUICK_CHANGES | REPLICATED, racks=True) as running:
        yield running


@pytest.fixture(scope="module")
def old_jvm(java: str, request: pytest.FixtureRequest) -> Iterator[Jvm]:
    cache = request.config.rootpath / ".cache" / f"kafka-clients-{OLD_JAVA}"
    with Jvm(java, client_libs(java, OLD_JAVA, cache)) as running:
        yield running


@pytest.fixture(scope="module")
def serving(jvm: Jvm, brokers: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with Admin(jvm, brokers.bootstrap) as admin:  # first: a client without a subscription asks again in 5 min
        admin.set_subscription("each-second", "*", 1_000)
    with Serving(brokers.bootstrap, tmp_path_factory.mktemp("families")) as running:
        yield running


@pytest.fixture(scope="module")
def admin(jvm: Jvm, serving: Serving) -> Iterator[Admin]:
    """Kafka's Admin, through the gateway as well."""
    with Admin(jvm, serving.kafka) as running:
        yield running


@pytest.fixture
def topic(admin: Admin, serving: Serving, name: str) -> str:
    admin.create_topics([name], partitions=PARTITIONS, replicas=3)
    # Brokers apply the controller's decision one by one: each has to know the leader of each partition.
    for broker in Producer({"bootstrap.servers": serving.kafka}).list_topics(timeout=PATIENCE_S).brokers.values():
        eventually(partial(_leads_all, f"{broker.host}:{broker.port}", name), bool, PATIENCE_S)
    return name


@pytest.fixture(autouse=True)
def only_the_gateway(brokers: LocalCluster, jvm: Jvm, old_jvm: Jvm, serving: Serving) -> Iterator[None]:
    """Looks over and over at whom the processes with clients in them are connected to."""
    processes = [psutil.Process(), psutil.Process(jvm.pid), psutil.Process(old_jvm.pid)]
    met: set[int] = set()

    def look(done: threading.Event) -> None:
        while not done.wait(LOOK_S):
            for process in processes:
                met.update(c.raddr.port for c in process.net_connections("tcp") if c.raddr)

    with running(look):
        yield
    assert _port(serving.kafka) in met
    assert not met & {_port(address) for address in brokers.bootstrap.split(",")}


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def test_old_java_client_transacts_and_pushes_telemetry(old_jvm: Jvm, serving: Serving, topic: str) -> None:
    producers = [
        old_jvm.producer(serving.kafka, f"{topic}-{codec}", compression_type=codec, transactional_id=f"{topic}-{codec}")
        for codec in CODECS
    ]
    for producer in producers:
        producer.initTransactions()
        producer.beginTransaction()
        produced_by_java(old_jvm, producer, topic, RECORDS)
        producer.commitTransaction()
    consumer = old_jvm.consumer(serving.kafka, f"{topic}-c", topic, isolation_level="read_committed")
    assert sorted(consumed_by_java(old_jvm, consumer, topic, len(RECORDS) * len(CODECS))) == sorted(
        RECORDS * len(CODECS)
    )
    for client_id in (f"{topic}-zstd", f"{topic}-c"):
        software, version, address, metrics = pushed(serving, client_id)
        assert (software, version, address) == ("apache-kafka-java", OLD_JAVA, "127.0.0.1")
        assert metrics > 50
    for client in (*producers, consumer):
        client.close()


def test_new_group_protocol_consumer_reads_and_pushes_telemetry(jvm: Jvm, serving: Serving, topic: str) -> None:
    producer = jvm.producer(serving.kafka, f"{topic}-p")
    produced_by_java(jvm, producer, topic, RECORDS)
    producer.close()
    consumer = jvm.consumer(serving.kafka, f"{topic}-c", topic, group_protocol="consumer")
    assert sorted(consumed_by_java(jvm, consumer, topic, len(RECORDS))) == sorted(RECORDS)
    assert pushed(serving, f"{topic}-c")[3] > 50
    consumer.close()


def test_share_consumer_reads_and_pushes_telemetry(jvm: Jvm, serving: Serving, topic: str) -> None:
    producer = jvm.producer(serving.kafka, f"{topic}-p", compression_type="lz4")
    produced_by_java(jvm, producer, topic, RECORDS)
    producer.close()
    kafka = jvm.classes.org.apache.kafka
    group = kafka.common.config.ConfigResource(kafka.common.config.ConfigResource.Type.GROUP, topic)
    earliest = kafka.clients.admin.ConfigEntry("share.auto.offset.reset", "earliest")  # of the group (KIP-932)
    operation = kafka.clients.admin.AlterConfigOp
    admin = jvm.admin(serving.kafka)
    admin.incrementalAlterConfigs({group: [operation(earliest, operation.OpType.SET)]}).all().get()
    admin.close()
    deserializer = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
    config = {"bootstrap.servers": serving.kafka, "client.id": f"{topic}-c", "group.id": topic}
    config |= {"key.deserializer": deserializer, "value.deserializer": deserializer}
    consumer = kafka.clients.consumer.KafkaShareConsumer(jvm.properties(config))
    assert sorted(consumed_by_java(jvm, consumer, topic, len(RECORDS))) == sorted(RECORDS)
    assert not any(failed.isPresent() for failed in consumer.commitSync().values())
    assert pushed(serving, f"{topic}-c")[3] > 50
    consumer.close()


def acknowledged(old_jvm: Jvm, bootstrap: str, topic: str, over: threading.Event) -> list[bytes]:
    """Three families produce until it is over; all that the brokers acknowledged."""
    java = old_jvm.producer(bootstrap, f"{topic}-java")
    record = old_jvm.classes.org.apache.kafka.clients.producer.ProducerRecord
    librdkafka = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    python = kafka_python.KafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, acks="all")
    by_java, by_python, by_librdkafka = [], [], list[bytes]()

    def delivered(error: Any, message: Any) -> None:
        if error is None:
            by_librdkafka.append(message.value())

    number = 0
    while not over.wait(0.01):
        number += 1
        partition = number % PARTITIONS
        values = [f"{family} {number} ".encode() + bytes(500) for family in ("java", "python", "librdkafka")]
        by_java.append((values[0], java.send(record(topic, partition, None, values[0]))))
        by_python.append((values[1], python.send(topic, values[1], partition=partition)))
        librdkafka.produce(topic, values[2], partition=partition, on_delivery=delivered)
        librdkafka.poll(0)
    librdkafka.flush(PATIENCE_S)
    python.flush(PATIENCE_S)
    java.flush()
    stored = [value for value, sent in by_java if sent.get().hasOffset()]
    stored += [value for value, sent in by_python if sent.succeeded()]
    java.close()
    python.close()
    assert len(stored) + len(by_librdkafka) == 3 * number  # they retry until it is stored
    return stored + by_librdkafka


def read_by_librdkafka(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"{topic}-l", "auto.offset.reset": "earliest"})
    seen = consumed_by_librdkafka(consumer, [topic], count)
    consumer.close()
    return sorted(seen)


def test_acknowledged_records_survive_leader_changes(
    old_jvm: Jvm, brokers: LocalCluster, serving: Serving, topic: str
) -> None:
    over = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(acknowledged, old_jvm, serving.kafka, topic, over)
        try:
            time.sleep(1)
            brokers.brokers[1].stop()
            eventually(lambda: {2, -1} & set(leaders(serving.kafka, topic)), lambda gone: not gone)
            time.sleep(0.5)
            brokers.brokers[1].start_again()
            brokers.brokers[1].wait_ready()
            time.sleep(0.5)
        finally:
            over.set()
        stored = sorted(writing.result())
    consumer = old_jvm.consumer(serving.kafka, f"{topic}-c", topic)
    assert sorted(consumed_by_java(old_jvm, consumer, topic, len(stored))) == stored
    consumer.close()
    assert read_by_librdkafka(serving.kafka, topic, len(stored)) == stored
    by_python = consumed_by_python(topic, len(stored), bootstrap_servers=serving.kafka, group_id=f"{topic}-p")
    assert sorted(by_python) == stored


def test_new_leader_address_in_produce_response_is_the_gateways(serving: Serving, topic: str) -> None:
    metadata = Producer({"bootstrap.servers": serving.kafka}).list_topics(topic, PATIENCE_S)
    leader = metadata.topics[topic].partitions[0].leader
    listeners = {broker.id: (broker.host, broker.port) for broker in metadata.brokers.values()}
    other = next(node_id for node_id in listeners if node_id != leader)
    batch = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1_000)
    batch.append(timestamp=1, key=None, value=b"for somebody else")
    batch.close()
    partition = {"index": 0, "records": bytes(batch.buffer())}
    topics = [{"name": topic, "partition_data": [partition]}]
    fields = {"transactional_id": None, "acks": -1, "timeout": timedelta(seconds=5), "topic_data": topics}
    request = NegotiatedRequest(PRODUCE, fields, versions=[12])

    async def answer() -> Any:
        options = ConnectionOptions(client_id=topic, timeout_ms=10_000, max_response_bytes=100_000)
        connection = await KafkaConnection.open(*listeners[other], options)
        try:
            return await connection.send(request)
        finally:
            await connection.close()

    response = asyncio.run(answer())
    reported = response.responses[0].partition_responses[0]
    assert (reported.error_code, reported.current_leader.leader_id) == (ErrorCode.not_leader_or_follower, leader)
    assert [(node.host, node.port) for node in response.node_endpoints] == [listeners[leader]]


def test_fetch_response_names_the_new_leader_and_no_address(jvm: Jvm, serving: Serving, topic: str) -> None:
    before = moved(jvm, serving, topic)
    metadata = Producer({"bootstrap.servers": serving.kafka}).list_topics(topic, PATIENCE_S)
    leader = metadata.topics[topic].partitions[0].leader
    body = fetched(serving, (metadata.brokers[before].host, metadata.brokers[before].port), topic)
    kafka = jvm.classes.org.apache.kafka.common
    buffer = kafka.protocol.ByteBufferAccessor(jvm.classes.java.nio.ByteBuffer.wrap(body))
    response = kafka.message.FetchResponseData(buffer, 18)
    (reported,) = response.responses()[0].partitions()
    assert (reported.errorCode(), reported.currentLeader().leaderId()) == (ErrorCode.not_leader_or_follower, leader)
    assert response.nodeEndpoints().isEmpty()
    assert [field.tag() for field in response.unknownTaggedFields()] == [127]


def test_consumers_follow_a_moved_leader(jvm: Jvm, serving: Serving, topic: str) -> None:
    producer = jvm.producer(serving.kafka, f"{topic}-p")
    consumer = jvm.consumer(serving.kafka, f"{topic}-c", topic)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_by_librdkafka, serving.kafka, topic, 2 * len(RECORDS))
        produced_by_java(jvm, producer, topic, RECORDS)
        assert sorted(consumed_by_java(jvm, consumer, topic, len(RECORDS))) == sorted(RECORDS)
        moved(jvm, serving, topic)
        produced_by_java(jvm, producer, topic, RECORDS)
        assert sorted(consumed_by_java(jvm, consumer, topic, len(RECORDS))) == sorted(RECORDS)
        assert reading.result() == sorted(RECORDS * 2)
    producer.close()
    consumer.close()


def test_consumer_reads_from_the_replica_in_its_rack(jvm: Jvm, serving: Serving, topic: str) -> None:
    producer = jvm.producer(serving.kafka, f"{topic}-p")
    produced_by_java(jvm, producer, topic, RECORDS)
    producer.close()
    consumer = jvm.consumer(serving.kafka, f"{topic}-c", topic, client_rack="rack-2")
    assert sorted(consumed_by_java(jvm, consumer, topic, len(RECORDS))) == sorted(RECORDS)
    received = {
        str(name.tags()["node-id"]): float(metric.metricValue())
        for name, metric in consumer.metrics().items()
        if name.name() == "incoming-byte-total" and "node-id" in name.tags()
    }
    consumer.close()
    size = sum(map(len, RECORDS))
    assert received.pop("node-2") >= size
    assert sum(received.values()) < size / 10


def leaders(bootstrap: str, topic: str) -> list[int]:
    """The leader of each partition, or -1."""
    metadata = Producer({"bootstrap.servers": bootstrap}).list_topics(topic, PATIENCE_S)
    return [metadata.topics[topic].partitions[index].leader for index in range(PARTITIONS)]


def _leads_all(address: str, topic: str) -> bool:
    partitions = _metadata(address, topic).topics[0].partitions
    return len(partitions) == PARTITIONS and all(partition.leader_id >= 0 for partition in partitions)


def _metadata(address: str, topic: str) -> Any:
    """A MetadataResponse: what the broker behind this address knows of the topic."""
    asked = entity_of_fields(message_type("metadata", 12, "request"), {"topics": [{"name": topic}]})
    with RawConnection(address) as connection:
        return decode(message_type("metadata", 12, "response"), connection.ask(METADATA, 12, encode(asked)))


def moved(jvm: Jvm, serving: Serving, topic: str) -> int:
    """Moves the first partition to one other broker, and returns the id of the one that led it. A broker that kept a
    replica would still answer consumers (KIP-392)."""
    kafka, util = jvm.classes.org.apache.kafka, jvm.classes.java.util
    before = leaders(serving.kafka, topic)[0]
    replicas = util.ArrayList()
    replicas.add(before % 3 + 1)
    order = util.Optional.of(kafka.clients.admin.NewPartitionReassignment(replicas))
    admin = jvm.admin(serving.kafka)
    admin.alterPartitionReassignments({kafka.common.TopicPartition(topic, 0): order}).all().get()
    eventually(lambda: len(admin.listPartitionReassignments().reassignments().get()), lambda count: not count)
    admin.close()
    eventually(lambda: leaders(serving.kafka, topic)[0], lambda leader: leader not in (before, -1))
    return before


def fetched(serving: Serving, address: tuple[str, int], topic: str) -> bytes:
    """The response, version 18, to a Fetch of the topic's first partition."""
    metadata = _metadata(serving.kafka, topic)
    partition = fetch.FetchPartition(partition=i32(0), fetch_offset=i64(0), partition_max_bytes=i32(1000))
    request = fetch.FetchRequest(
        max_wait=i32Timedelta.parse(timedelta()),
        min_bytes=i32(0),
        topics=(fetch.FetchTopic(topic_id=metadata.topics[0].topic_id, partitions=(partition,)),),
        forgotten_topics_data=(),
    )
    with RawConnection("{}:{}".format(*address)) as connection:
        return connection.ask(FETCH, 18, encode(request))
