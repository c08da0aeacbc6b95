"""Eight unmodified Java clients in one JVM, each driven by a Python thread. Telemetry is not configured."""

import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from exporters.printable import one_line
from headroom.demo.jvm import Jvm
from headroom.demo.processes import DemoError
from headroom.demo.script import Client, Pace, clients

TICK_S = 0.1
IN_FLIGHT = 8  # records in flight of a producer that sends as fast as it can
POLL_MS = 500
CLOSE_MS = 3_000
JOIN_TIMEOUT_S = 30.0


class JavaClients:
    """Call `start_consumers`, `start_producers`, `check` repeatedly, `stop`."""

    def __init__(self, jvm: Jvm, bootstrap: str) -> None:
        self._jvm = jvm
        self._bootstrap = bootstrap
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(max_workers=8, thread_name_prefix="java-client")
        self._running: list[Future[None]] = []

    def start_consumers(self) -> None:
        """Returns when each has its partition. Raises DemoError when one gets none."""
        consumers = [(client, threading.Event()) for client in clients("java", "consumer")]
        for client, joined in consumers:
            self._running.append(self._pool.submit(_consume, self._jvm, self._bootstrap, client, joined, self._stop))
        deadline = time.monotonic() + JOIN_TIMEOUT_S
        for _, joined in consumers:
            while not joined.wait(TICK_S):
                self.check()
                if time.monotonic() > deadline:
                    raise DemoError(f"a Java consumer got no partition in {JOIN_TIMEOUT_S:.0f} s")

    def start_producers(self) -> None:
        for client in clients("java", "producer"):
            self._running.append(self._pool.submit(_produce, self._jvm, self._bootstrap, client, self._stop))

    def check(self) -> None:
        for future in self._running:
            if future.done() and not self._stop.is_set():
                reason = one_line(future.exception())
                raise DemoError(f"a Java client ended: {reason[:300]}")

    def stop(self) -> None:
        self._stop.set()
        self._pool.shutdown(wait=True)


def _consume(jvm: Jvm, bootstrap: str, client: Client, joined: threading.Event, stop: threading.Event) -> None:
    consumer = jvm.consumer(bootstrap, client.client_id, group_id=client.client_id)
    try:
        consumer.subscribe([client.topic])
        patience = jvm.duration(POLL_MS)
        while not stop.is_set():
            consumer.poll(patience)
            if not joined.is_set() and not consumer.assignment().isEmpty():
                joined.set()
    finally:
        consumer.close(jvm.duration(CLOSE_MS))


def _produce(jvm: Jvm, bootstrap: str, client: Client, stop: threading.Event) -> None:
    script = client.script
    producer = jvm.producer(bootstrap, client.client_id)
    # One record, sent repeatedly, so that it is not copied into the JVM each time.
    values = jvm.bytes_of(script.record_bytes)
    record = jvm.classes.org.apache.kafka.clients.producer.ProducerRecord(client.topic, values)
    try:
        pace, start = Pace(script.rate, script.record_bytes), time.monotonic()
        while not stop.wait(TICK_S) and time.monotonic() - start < script.greedy_after_s:
            for _ in range(pace.due(time.monotonic() - start)):
                producer.send(record)
        # As fast as it can, with a bounded number of records in flight.
        on_the_way: deque[Any] = deque()
        while not stop.is_set():
            while len(on_the_way) < IN_FLIGHT:
                on_the_way.append(producer.send(record))
            on_the_way.popleft().get()
    finally:
        producer.close(jvm.duration(CLOSE_MS))
