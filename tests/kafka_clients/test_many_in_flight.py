"""A librdkafka producer that sends one record a request and is far over its quota: the gateway stops reading at its
limit, as a broker does."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from headroom.demo.broker import LocalCluster
from headroom.demo.jvm import Admin
from headroom.demo.scenario import Serving

pytestmark = [pytest.mark.kafka, pytest.mark.java, pytest.mark.clickhouse, pytest.mark.release]

RECORDS = 20_000
CROWDED = 4_000  # twice what the gateway lets into its queue
AFTER = 8  # statistics; then the quota is lifted, so that the rest is sent soon
QUOTA = 10_000.0  # bytes per second
PATIENCE_S = 120.0
_STATISTICS_MS = 500


@dataclass
class Sent:
    """What a producer saw until all of its records were acknowledged."""

    disconnects: int = 0
    most_in_flight: int = 0
    failed: int = 0

    def take(self, statistics: str) -> None:
        brokers = json.loads(statistics)["brokers"].values()
        self.disconnects = sum(max(broker["connects"] - 1, broker["disconnects"]) for broker in brokers)
        self.most_in_flight = max(self.most_in_flight, *(broker["waitresp_cnt"] for broker in brokers))


def send(bootstrap: str, topic: str, client_id: str, records: int, crowded: Callable[[Sent], None]) -> Sent:
    """Sends numbers as fast as the client takes them; `crowded` is called with each statistic."""
    sent = Sent()

    def statistics(text: str) -> None:
        sent.take(text)
        crowded(sent)

    def acknowledged(error: Any, _message: Any) -> None:
        sent.failed += error is not None

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            "linger.ms": 0,
            "batch.num.messages": 1,
            "queue.buffering.max.messages": records + 1,
            "message.timeout.ms": 3_600_000,
            # A request waits for those before it, here as at the broker; no longer than clients allow at most.
            "socket.timeout.ms": 300_000,
            "socket.send.buffer.bytes": 131_072,
            "statistics.interval.ms": _STATISTICS_MS,
            "stats_cb": statistics,
        }
    )
    for number in range(records):
        producer.produce(topic, b"%d" % number, on_delivery=acknowledged)
        if number % 1_000 == 0:
            producer.poll(0)
    while len(producer):
        producer.poll(0.1)
    return sent


def received(bootstrap: str, topic: str, records: int) -> list[int]:
    """All records of the topic, in order; more than `records` when some were sent twice."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    consumer.subscribe([topic])
    values: list[int] = []
    deadline = time.monotonic() + PATIENCE_S
    is_at_end = False
    while time.monotonic() < deadline and not (is_at_end and len(values) >= records):
        message = consumer.poll(1.0)
        if message is None:
            continue
        is_at_end = message.error() is not None
        if not is_at_end:
            values.append(int(message.value() or b"-1"))
    consumer.close()
    return values


def test_throttled_producer_with_many_requests_in_flight_stays_connected(
    kafka: LocalCluster, kafka_admin: Admin, tmp_path: Path, name: str
) -> None:
    kafka_admin.create_topics([name])
    kafka_admin.alter_quota({"client-id": name}, {"producer_byte_rate": QUOTA})
    seen = 0

    def crowded(sent: Sent) -> None:
        nonlocal seen
        seen += sent.most_in_flight > CROWDED
        if seen == AFTER:
            kafka_admin.alter_quota({"client-id": name}, {"producer_byte_rate": None})

    with Serving(kafka.bootstrap, tmp_path) as serving:
        sent = send(serving.kafka, name, name, RECORDS, crowded)
    assert seen >= AFTER
    assert (sent.disconnects, sent.failed) == (0, 0)
    assert received(kafka.bootstrap, name, RECORDS) == list(range(RECORDS))
