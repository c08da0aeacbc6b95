"""Records written and read by clients of several families."""

from __future__ import annotations

import time
from typing import Any

import kafka as kafka_python
from confluent_kafka import Consumer

from headroom.demo.jvm import Jvm
from tests.kafka_clients.conftest import PATIENCE_S
from tests.kit.kafka.consumed import values_of


def produced_by_java(jvm: Jvm, producer: Any, topic: str, values: list[bytes]) -> None:
    """Returns when each is acknowledged."""
    record = jvm.classes.org.apache.kafka.clients.producer.ProducerRecord
    for sent in [producer.send(record(topic, value)) for value in values]:
        sent.get()


def consumed_by_java(jvm: Jvm, consumer: Any, topic: str, count: int) -> list[bytes]:
    consumer.subscribe([topic])
    seen: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(seen) < count and time.monotonic() < deadline:
        seen += [bytes(record.value()) for record in consumer.poll(jvm.duration(500)).iterator()]
    return sorted(seen)


def consumed_by_librdkafka(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"{topic}-l", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    seen: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(seen) < count and time.monotonic() < deadline:
        seen += values_of(consumer.consume(500, 0.5))
    consumer.close()
    return sorted(seen)


def consumed_by_python(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = kafka_python.KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=f"{topic}-p",
        auto_offset_reset="earliest",
        consumer_timeout_ms=int(PATIENCE_S * 1000),
    )
    seen = sorted(message.value for _, message in zip(range(count), consumer, strict=False))
    consumer.close()
    return seen
