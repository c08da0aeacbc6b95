"""A librdkafka producer that sends one record a request and is far over its quota: tens of thousands in flight.

`python -m tests.kafka_clients.many_in_flight 50000` compares a gateway with its broker: records, disconnects, seconds.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer

from headroom.demo.admin import Admin
from headroom.demo.broker import LocalCluster
from headroom.demo.jars import KAFKA_VERSION, find_java, kafka_libs
from headroom.demo.jvm import Jvm
from headroom.demo.serving import Serving

QUOTA = 10_000.0  # bytes per second
PATIENCE_S = 120.0
_STATISTICS_MS = 500


@dataclass
class Sent:
    """What a producer saw until all of its records were acknowledged."""

    seconds: float = 0.0
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
    began_s = time.monotonic()
    for number in range(records):
        producer.produce(topic, b"%d" % number, on_delivery=acknowledged)
        if number % 1_000 == 0:
            producer.poll(0)
    while len(producer):
        producer.poll(0.1)
    sent.seconds = time.monotonic() - began_s
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


def main(records: int) -> int:
    java = find_java()
    libs = kafka_libs(java, Path(".cache") / f"kafka-{KAFKA_VERSION}")
    with (
        tempfile.TemporaryDirectory() as directory,
        LocalCluster(java, libs) as kafka,
        Jvm(java, libs) as jvm,
        Admin(jvm, kafka.bootstrap) as admin,
        Serving(kafka.bootstrap, Path(directory)) as serving,
        ThreadPoolExecutor(2) as pool,
    ):
        ways = {"gateway": serving.kafka, "broker": kafka.bootstrap}
        for way in ways:
            admin.create_topics([way])
            admin.alter_quota({"client-id": way}, {"producer_byte_rate": QUOTA})
        time.sleep(2)  # the broker follows its controller
        running = {way: pool.submit(send, at, way, way, records, lambda _: None) for way, at in ways.items()}
        faults = 0
        for way, result in running.items():
            sent, values = result.result(), received(kafka.bootstrap, way, records)
            is_in_order = values == list(range(records))
            faults += sent.disconnects + sent.failed + (not is_in_order)
            print(
                f"{way}: {records} records in {sent.seconds:.1f} s, {sent.most_in_flight} in flight, {sent.disconnects}"
                f" disconnects, {sent.failed} failed, {len(values) - len(set(values))} twice, in order: {is_in_order}"
            )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
