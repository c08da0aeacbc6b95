"""Records written and read by clients of several families."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from confluent_kafka import Consumer, Message
from kafka import KafkaConsumer

from headroom.demo.jvm import Jvm

PATIENCE_S = 120.0


def produced_by_java(jvm: Jvm, producer: Any, topic: str, values: Iterable[bytes]) -> None:
    """Returns when each is acknowledged."""
    record = jvm.classes.org.apache.kafka.clients.producer.ProducerRecord
    for sent in [producer.send(record(topic, value)) for value in values]:
        sent.get()


def values_of(messages: Iterable[Message]) -> list[bytes]:
    """Of the records; errors, such as the end of a partition, are left out."""
    return [value for message in messages if not message.error() and (value := message.value()) is not None]


def consumed_by_java(
    jvm: Jvm, consumer: Any, topic: str, count: int, until: Callable[[], bool] = lambda: True
) -> list[bytes]:
    """In the order in which they come, once there are `count` of them and `until` holds; fewer after two minutes."""
    consumer.subscribe([topic])
    return _polled(lambda: [bytes(one.value()) for one in consumer.poll(jvm.duration(200)).iterator()], count, until)


def consumed_by_librdkafka(
    consumer: Consumer, topics: Sequence[str], count: int, until: Callable[[], bool] = lambda: True
) -> list[bytes]:
    """As `consumed_by_java`; without `topics` of what it is assigned."""
    if topics:
        consumer.subscribe(list(topics))
    return _polled(lambda: values_of(consumer.consume(500, 0.2)), count, until)


def consumed_by_python(topic: str, count: int, **config: Any) -> list[bytes]:
    patience_ms = int(PATIENCE_S * 1000)
    consumer = KafkaConsumer(topic, auto_offset_reset="earliest", consumer_timeout_ms=patience_ms, **config)
    values = [message.value for _, message in zip(range(count), consumer, strict=False)]
    consumer.close()
    return values


def _polled(poll: Callable[[], list[bytes]], count: int, until: Callable[[], bool]) -> list[bytes]:
    seen: list[bytes] = []
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s and (len(seen) < count or not until()):
        seen += poll()
    return seen
