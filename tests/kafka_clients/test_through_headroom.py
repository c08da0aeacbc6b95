"""Unmodified clients of three families through `headroom serve`, started as a user does: records and telemetry."""

from collections.abc import Callable, Iterator

import kafka as kafka_python
import pytest
from confluent_kafka import Consumer, Producer

from headroom.demo.broker import LocalCluster
from headroom.demo.jvm import Admin, Jvm
from headroom.demo.scenario import Serving
from tests.kafka_clients.conftest import PATIENCE_S, RECORDS, assert_terminated, pushed, topic_shares
from tests.kit.kafka.records import consumed_by_java, consumed_by_librdkafka, consumed_by_python

pytestmark = [pytest.mark.kafka, pytest.mark.java, pytest.mark.clickhouse]


@pytest.fixture(scope="module")
def serving(kafka: LocalCluster, kafka_admin: Admin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Headroom in front of the shared broker, with a subscription that lets clients push each second."""
    kafka_admin.set_subscription("each-second", "*", 1_000)
    with Serving(kafka.bootstrap, tmp_path_factory.mktemp("serving")) as running:
        yield running


def test_java_client_transfers_records_and_telemetry(
    jvm: Jvm, serving: Serving, new_topic: Callable[[], str], name: str
) -> None:
    topic = new_topic()
    producer = jvm.producer(serving.kafka, f"{name}-p", linger_ms="60000")  # `flush` and `close` send at once
    record = jvm.classes.org.apache.kafka.clients.producer.ProducerRecord
    for value in RECORDS:
        producer.send(record(topic, value))
    producer.flush()
    consumer = jvm.consumer(serving.kafka, f"{name}-c", name)
    seen = consumed_by_java(jvm, consumer, topic, len(RECORDS))
    for client_id in (f"{name}-p", f"{name}-c"):
        software, version, address, metrics = pushed(serving, client_id)
        assert (software, version, address) == ("apache-kafka-java", "4.3.1", "127.0.0.1")
        assert metrics > 50
    producer.send(record(topic, b"the last"))  # still pending at the close: the terminating push is sent along with it
    producer.close()
    consumer.close()
    assert seen == RECORDS
    for client_id in (f"{name}-p", f"{name}-c"):
        assert_terminated(serving, client_id)


def test_librdkafka_client_transfers_records_and_telemetry(
    serving: Serving, new_topic: Callable[[], str], name: str
) -> None:
    topic = new_topic()
    producer = Producer({"bootstrap.servers": serving.kafka, "client.id": f"{name}-p"})
    for value in RECORDS:
        producer.produce(topic, value)
    assert producer.flush(PATIENCE_S) == 0
    group = {"group.id": name, "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": serving.kafka, "client.id": f"{name}-c", **group})
    seen = consumed_by_librdkafka(consumer, [topic], len(RECORDS))
    for client_id in (f"{name}-p", f"{name}-c"):
        software, _version, address, metrics = pushed(serving, client_id)
        assert (software, address) == ("confluent-kafka-python", "127.0.0.1")
        assert metrics > 5
    consumer.close()
    assert seen == RECORDS


def test_topics_have_the_shares_of_their_records(
    jvm: Jvm, serving: Serving, new_topic: Callable[[], str], name: str
) -> None:
    """Java names topics by their ids when it produces, librdkafka when it fetches."""
    often, seldom = new_topic(), new_topic()
    producer = jvm.producer(serving.kafka, f"{name}-p")
    record, value = jvm.classes.org.apache.kafka.clients.producer.ProducerRecord, jvm.bytes_of(10_000)
    for number in range(120):
        producer.send(record(seldom if number % 4 == 0 else often, value))
    producer.close()
    group = {"group.id": name, "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": serving.kafka, "client.id": f"{name}-c", **group})
    consumed_by_librdkafka(consumer, [often, seldom], 120)
    consumer.close()
    for client_id, direction in ((f"{name}-p", "in"), (f"{name}-c", "out")):
        shares = topic_shares(serving, client_id, direction, 120 * 10_000)
        assert shares == pytest.approx({often: 0.75, seldom: 0.25}, rel=0.05)


def test_client_without_telemetry_transfers_records(serving: Serving, new_topic: Callable[[], str], name: str) -> None:
    topic = new_topic()
    producer = kafka_python.KafkaProducer(bootstrap_servers=serving.kafka, client_id=f"{name}-p")
    for value in RECORDS:
        producer.send(topic, value)
    producer.flush(PATIENCE_S)
    producer.close()
    named = {"bootstrap_servers": serving.kafka, "client_id": f"{name}-c", "group_id": name}
    assert consumed_by_python(topic, len(RECORDS), **named) == RECORDS
