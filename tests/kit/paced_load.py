"""A repeatable load: real producers that pace themselves, and consumers that read continuously."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, Producer

from headroom.demo.jvm import Jvm
from headroom.demo.pacing import Pace

TICK_S = 0.1
RECORD_BYTES = 4_000
JOIN_TIMEOUT_S = 90.0


@dataclass(frozen=True)
class Paced:
    """A producer that wants `bytes_per_s` for some seconds, then another rate, and so on."""

    client_id: str
    topic: str
    phases: tuple[tuple[float, float], ...]  # seconds, bytes/s

    def send(self, send: Callable[[], None], done: threading.Event) -> None:
        for seconds, bytes_per_s in self.phases:
            pace, start_s = Pace(bytes_per_s, RECORD_BYTES, ramp_s=1.0), time.monotonic()
            while (elapsed_s := time.monotonic() - start_s) < seconds and not done.wait(TICK_S):
                for _ in range(pace.due(elapsed_s)):
                    send()


@dataclass
class Reported:
    """The throttling that librdkafka reported to its application: by client id, when and how long, in seconds."""

    events: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))

    def callback(self, client_id: str) -> Callable[[Any], None]:
        return lambda event: self.events[client_id].append((time.time(), event.throttle_time))

    def throttled_s(self, client_id: str, end_s: float) -> float:
        """Until `end_s`."""
        return sum(max(min(throttle_s, end_s - at_s), 0) for at_s, throttle_s in self.events[client_id])


@contextmanager
def librdkafka_producer(bootstrap: str, paced: Paced, reported: Reported) -> Iterator[Callable[[], None]]:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": paced.client_id,
            "throttle_cb": reported.callback(paced.client_id),
        }
    )
    producer.list_topics(paced.topic, JOIN_TIMEOUT_S)
    value = bytes(RECORD_BYTES)

    def send() -> None:
        producer.produce(paced.topic, value)
        producer.poll(0)

    yield send
    producer.poll(0)
    producer.purge()
    producer.flush(1)


@contextmanager
def java_producer(jvm: Jvm, bootstrap: str, paced: Paced) -> Iterator[Callable[[], None]]:
    producer = jvm.producer(bootstrap, paced.client_id)
    producer.partitionsFor(paced.topic)
    record = jvm.classes.org.apache.kafka.clients.producer.ProducerRecord(paced.topic, jvm.bytes_of(RECORD_BYTES))

    def send() -> None:
        producer.send(record)

    yield send
    producer.close(jvm.duration(0))  # what still waits is not sent


@contextmanager
def consuming(bootstrap: str, client_id: str, topic: str, group: str, reported: Reported) -> Iterator[None]:
    """A consumer with an assigned partition that reads new records and stores no offsets."""
    done, joined = threading.Event(), threading.Event()
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            "group.id": group,
            "auto.offset.reset": "latest",
            "enable.auto.commit": False,
            "throttle_cb": reported.callback(client_id),
        }
    )

    def consume() -> None:
        consumer.subscribe([topic], on_assign=lambda _consumer, _partitions: joined.set())
        while not done.is_set():
            consumer.consume(100, TICK_S)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(consume)
        try:
            assert joined.wait(JOIN_TIMEOUT_S), f"{client_id} got no partition"
            yield
        finally:
            done.set()
            running.result()
            consumer.close()


@dataclass(frozen=True)
class Load:
    """The clients of the load."""

    librdkafka: Sequence[Paced]
    java: Sequence[Paced]
    consumers: Sequence[tuple[str, str]]  # client id, topic

    def run(self, jvm: Jvm, bootstrap: str, group: str) -> tuple[int, int, Reported]:
        """All of it: begin and end in whole seconds of the epoch, and what librdkafka reported of throttling."""
        reported = Reported()
        with ExitStack() as stack:
            for client_id, topic in self.consumers:
                stack.enter_context(consuming(bootstrap, client_id, topic, f"{group}-{client_id}", reported))
            senders = [
                (paced, stack.enter_context(librdkafka_producer(bootstrap, paced, reported)))
                for paced in self.librdkafka
            ]
            senders += [(paced, stack.enter_context(java_producer(jvm, bootstrap, paced))) for paced in self.java]
            done = stack.enter_context(_ended_by_failure())
            begin_s = int(time.time())
            with ThreadPoolExecutor(len(senders)) as pool:
                for running in [pool.submit(paced.send, send, done) for paced, send in senders]:
                    running.result()
            end_s = int(time.time())
        return begin_s, end_s, reported


@contextmanager
def _ended_by_failure() -> Iterator[threading.Event]:
    done = threading.Event()
    try:
        yield done
    finally:
        done.set()
