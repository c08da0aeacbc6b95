"""Drives the real clients of the script: one thread each, at the rate that the script wants at the moment."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition

from headroom.demo.jvm import Jvm
from tests.truth.script import HEAVY, JAVA, LARGE_RECORD_BYTES, LIMIT, NEW_LIBRDKAFKA, RECORD_BYTES, Client, Pods

WAITING_RECORDS = 40  # a throttled producer drops what it cannot queue
TICK_S = 0.05
FORGIVEN_S = 1.0  # what was due longer ago, after a stall, is dropped
TIMEOUT_S = 30.0
POLL_MS = 50
CLOSE_MS = 3_000  # with a terminating push

Send = Callable[[int], bool]  # a record to the partition; False: the queue is full


class Fleet:
    """Runs all clients until `stop`; `bootstraps` are those of the gateways."""

    def __init__(
        self, jvm: Jvm, old_jvm: Jvm, bootstraps: Sequence[str], clients: Sequence[Client], phase_s: int
    ) -> None:
        """`old_jvm`: with an older version of the Java client."""
        self._jvm = jvm
        self._old_jvm = old_jvm
        self._bootstraps = bootstraps
        self._phase_s = phase_s
        self._done = threading.Event()
        running = [(client, gateway, pod) for client in clients for gateway in client.gateways for pod in _pods(client)]
        self._ready = threading.Barrier(len(running) + 1)
        self._pool = ThreadPoolExecutor(self._ready.parties)
        self._begin_s = 0.0  # the second 0 of the script
        self._running: list[Future[None]] = [
            self._pool.submit(self._run, client, gateway, pod) for client, gateway, pod in running
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

    def _run(self, client: Client, gateway: int, pod: int) -> None:
        if client.pods:
            self._replace(client, client.pods, self._bootstraps[gateway], pod)
        elif client.reads and client.family == JAVA:
            self._poll(client, gateway)
        elif client.reads:
            self._consume(client, gateway)
        else:
            self._produce(client, gateway)

    def _replace(self, client: Client, pods: Pods, bootstrap: str, pod: int) -> None:
        """An instance of several; those that leave are replaced by one of another version."""
        stays = pod < pods.stay
        with self._opened(client, bootstrap, pushes=True, is_old=True) as send:
            self._ready.wait(TIMEOUT_S)
            self._send_until(client, send, float("inf") if stays else self._phase_s, LIMIT * pods.before)
        if stays:
            return
        with self._opened(client, bootstrap, pushes=True) as send:
            self._send_until(client, send, float("inf"), LIMIT * pods.after)

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

    def _send_until(self, client: Client, send: Send, end_s: float, rate: float | None = None) -> None:
        """`rate`: instead of what the client wants."""
        size = _record_bytes(client)
        owed, last_s = 0.0, time.time()
        sent = [0] * len(client.brokers)
        while not self._done.wait(TICK_S) and self._second < end_s:
            now_s, before_s = time.time(), last_s
            last_s = now_s
            if not self._begin_s:
                continue
            wanted = client.wanted(self._second, self._phase_s) / len(client.gateways) if rate is None else rate
            owed = min(owed + wanted * (now_s - before_s), max(wanted * FORGIVEN_S, size))
            while owed >= size:
                owed -= size
                # The partition that is furthest behind its share.
                partition = min(range(len(sent)), key=lambda one: (sent[one] + 1) / client.shares[one])
                sent[partition] += send(partition)

    @contextmanager
    def _opened(self, client: Client, bootstrap: str, *, pushes: bool, is_old: bool = False) -> Iterator[Send]:
        if client.family == JAVA:
            opened = self._java(self._old_jvm if is_old else self._jvm, client, bootstrap, pushes=pushes)
        else:
            version = {"client.software.version": NEW_LIBRDKAFKA} if client.pods and not is_old else {}
            opened = self._librdkafka(client, bootstrap, {**version, "enable.metrics.push": pushes})
        with opened as send:
            yield send

    @contextmanager
    def _java(self, jvm: Jvm, client: Client, bootstrap: str, *, pushes: bool) -> Iterator[Send]:
        config = {"enable.metrics.push": str(pushes).lower(), "linger.ms": "0", **client.config}
        producer = jvm.producer(bootstrap, client.name, **config)
        producer.partitionsFor(client.name)
        new_record = jvm.classes.org.apache.kafka.clients.producer.ProducerRecord
        value = jvm.bytes_of(RECORD_BYTES)
        waiting: list[object] = []

        def send(partition: int) -> bool:
            waiting[:] = [one for one in waiting if not one.isDone()]  # type: ignore[attr-defined] # a Java Future
            if len(waiting) >= WAITING_RECORDS:
                return False
            waiting.append(producer.send(new_record(client.name, partition, None, value)))
            return True

        yield send
        producer.close(jvm.duration(0 if self._done.is_set() else CLOSE_MS))

    @contextmanager
    def _librdkafka(self, client: Client, bootstrap: str, config: Mapping[str, object]) -> Iterator[Send]:
        named = {"bootstrap.servers": bootstrap, "client.id": client.name, "linger.ms": 0, "log_level": 4}
        producer = Producer({**named, **client.config, **config})
        producer.list_topics(client.name, TIMEOUT_S)
        size = _record_bytes(client)
        value = os.urandom(size) if size > RECORD_BYTES else bytes(size)

        def send(partition: int) -> bool:
            producer.poll(0)
            if len(producer) >= WAITING_RECORDS:
                return False
            producer.produce(client.name, value, partition=partition)
            return True

        yield send
        producer.purge()
        producer.flush(1)

    def _poll(self, client: Client, gateway: int) -> None:
        classes = self._jvm.classes
        consumer = self._jvm.consumer(self._bootstraps[gateway], client.name, client.name, enable_auto_commit="false")
        partitions = classes.java.util.ArrayList()
        partitions.add(classes.org.apache.kafka.common.TopicPartition(client.reads, 0))
        consumer.assign(partitions)
        consumer.seekToEnd(partitions)
        consumer.poll(self._jvm.duration(POLL_MS))
        self._ready.wait(TIMEOUT_S)
        while not self._done.is_set():
            consumer.poll(self._jvm.duration(POLL_MS))
        consumer.close()

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


def _pods(client: Client) -> range:
    """The numbers of its instances at the start."""
    return range(client.pods.stay + client.pods.leave if client.pods else 1)


def _record_bytes(client: Client) -> int:
    return LARGE_RECORD_BYTES if client.name == HEAVY else RECORD_BYTES
