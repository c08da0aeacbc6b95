"""Drives the real clients of the script: one thread each, at the rate that the script wants at the moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition

from headroom.demo.kit.jvm import Jvm
from tests.truth.script import JAVA, Client

RECORD_BYTES = 3_000
WAITING_RECORDS = 40  # a throttled producer drops what it cannot queue
TICK_S = 0.05
FORGIVEN_S = 1.0  # what was due longer ago, after a stall, is dropped
TIMEOUT_S = 30.0

Send = Callable[[int], bool]  # a record to the partition; False: the queue is full


class Fleet:
    """Runs all clients until `stop`; `bootstraps` are those of the gateways."""

    def __init__(self, jvm: Jvm, bootstraps: Sequence[str], clients: Sequence[Client], phase_s: int) -> None:
        self._jvm = jvm
        self._bootstraps = bootstraps
        self._phase_s = phase_s
        self._done = threading.Event()
        self._ready = threading.Barrier(sum(len(client.gateways) for client in clients) + 1)
        self._pool = ThreadPoolExecutor(self._ready.parties)
        self._begin_s = 0.0  # the second 0 of the script
        self._running: list[Future[None]] = [
            self._pool.submit(self._consume if client.reads else self._produce, client, gateway)
            for client in clients
            for gateway in client.gateways
        ]

    def wait_ready(self) -> None:
        """Returns when every client has a connection. Raises what one of them raised."""
        try:
            self._ready.wait(TIMEOUT_S)
        except threading.BrokenBarrierError:
            self.check()
            raise

    def begin(self, begin_s: float) -> None:
        """`begin_s`: the time (epoch) of the script's second 0; what lies before is the warm-up."""
        self._begin_s = begin_s

    def check(self) -> None:
        """Raises what a client raised."""
        for future in self._running:
            if future.done():
                future.result()

    def stop(self) -> None:
        self._done.set()
        self._ready.abort()
        self._pool.shutdown(wait=True)

    @property
    def _second(self) -> float:
        return time.time() - self._begin_s if self._begin_s else float("-inf")

    def _produce(self, client: Client, gateway: int) -> None:
        bootstrap = self._bootstraps[gateway]
        with ExitStack() as stack:
            send = stack.enter_context(self._opened(client, bootstrap, pushes=client.pushes))
            self._ready.wait(TIMEOUT_S)
            if client.stops_pushing:
                self._send_until(client, send, self._phase_s)
                stack.close()
                send = stack.enter_context(self._opened(client, bootstrap, pushes=False))
            self._send_until(client, send, float("inf"))

    def _send_until(self, client: Client, send: Send, end_s: float) -> None:
        owed, last_s = 0.0, time.time()
        sent = [0] * len(client.brokers)
        while not self._done.wait(TICK_S) and self._second < end_s:
            now_s, before_s = time.time(), last_s
            last_s = now_s
            if not self._begin_s:
                continue
            wanted = client.wanted(self._second, self._phase_s) / len(client.gateways)
            owed = min(owed + wanted * (now_s - before_s), max(wanted * FORGIVEN_S, RECORD_BYTES))
            while owed >= RECORD_BYTES:
                owed -= RECORD_BYTES
                # The partition that is furthest behind its share.
                partition = min(range(len(sent)), key=lambda one: (sent[one] + 1) / client.shares[one])
                sent[partition] += send(partition)

    @contextmanager
    def _opened(self, client: Client, bootstrap: str, *, pushes: bool) -> Iterator[Send]:
        opened = self._java if client.family == JAVA else self._librdkafka
        with opened(client.name, bootstrap, pushes=pushes) as send:
            yield send

    @contextmanager
    def _java(self, name: str, bootstrap: str, *, pushes: bool) -> Iterator[Send]:
        producer = self._jvm.producer(bootstrap, name, enable_metrics_push=str(pushes).lower(), linger_ms="0")
        producer.partitionsFor(name)
        new_record = self._jvm.classes.org.apache.kafka.clients.producer.ProducerRecord
        value = self._jvm.bytes_of(RECORD_BYTES)
        waiting: list[object] = []

        def send(partition: int) -> bool:
            waiting[:] = [one for one in waiting if not one.isDone()]  # type: ignore[attr-defined] # a Java Future
            if len(waiting) >= WAITING_RECORDS:
                return False
            waiting.append(producer.send(new_record(name, partition, None, value)))
            return True

        yield send
        producer.close(self._jvm.duration(0))

    @contextmanager
    def _librdkafka(self, name: str, bootstrap: str, *, pushes: bool) -> Iterator[Send]:
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": name,
                "linger.ms": 0,
                "enable.metrics.push": pushes,
                "log_level": 4,
            }
        )
        producer.list_topics(name, TIMEOUT_S)
        value = bytes(RECORD_BYTES)

        def send(partition: int) -> bool:
            producer.poll(0)
            if len(producer) >= WAITING_RECORDS:
                return False
            producer.produce(name, value, partition=partition)
            return True

        yield send
        producer.purge()
        producer.flush(1)

    def _consume(self, client: Client, gateway: int) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstraps[gateway],
                "client.id": client.name,
                "group.id": client.name,
                "log_level": 4,
                "enable.auto.commit": False,
                "queued.max.messages.kbytes": 1024,
            }
        )
        consumer.assign([TopicPartition(client.reads, 0, OFFSET_END)])
        consumer.consume(1, 0.1)
        self._ready.wait(TIMEOUT_S)
        while not self._done.is_set():
            consumer.consume(100, TICK_S)
        consumer.close()
