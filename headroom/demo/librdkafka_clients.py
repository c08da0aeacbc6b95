"""Eight unmodified librdkafka clients in a separate process. Telemetry is not configured.

The process consumes, prints `consuming` when each consumer has its partition, starts to produce when it reads the line
`produce`, and ends with its stdin. `LibrdkafkaClients` controls it.
"""

import contextlib
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer

from headroom.demo.processes import DemoError, complaint, first_line, start, stop
from headroom.demo.script import Client, Pace, clients

TICK_S = 0.1
IN_FLIGHT = 8  # records in flight of a producer that sends as fast as it can
CLOSE_S = 10.0
JOIN_TIMEOUT_S = 30.0


class LibrdkafkaClients:
    """Call `start_consumers`, `start_producers`, `check` repeatedly, `stop`."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self._bootstrap = bootstrap
        self._log = directory / "librdkafka.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start_consumers(self) -> None:
        """Returns when each has its partition. Raises DemoError when one gets none."""
        with self._log.open("ab") as log:
            argv = [sys.executable, "-P", "-m", "headroom.demo.librdkafka_clients", self._bootstrap]
            self._process = start(argv, stderr=log, stdout=subprocess.PIPE, stdin=subprocess.PIPE)
        if first_line(self._process, JOIN_TIMEOUT_S) != "consuming":
            raise DemoError(f"the librdkafka clients did not start: {complaint(self._log)}")

    def start_producers(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(b"produce\n")
        self._process.stdin.flush()

    def check(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            raise DemoError(f"the librdkafka clients ended: {complaint(self._log)}")

    def stop(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(CLOSE_S)
            stop(self._process)
            self._process = None


def _consume(bootstrap: str, client: Client, joined: threading.Event, done: threading.Event) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": client.client_id,
            "group.id": client.client_id,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.subscribe([client.topic], on_assign=lambda _consumer, _partitions: joined.set())
        while not done.is_set():
            for message in consumer.consume(100, TICK_S):
                fault = message.error()
                if fault is not None and fault.fatal():
                    raise KafkaException(fault)
    finally:
        consumer.close()


def _produce(bootstrap: str, client: Client, done: threading.Event) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": client.client_id})
    script, start_s = client.script, time.monotonic()
    pace, value = Pace(script.rate, script.record_bytes), bytes(script.record_bytes)
    while not done.wait(TICK_S) and time.monotonic() - start_s < script.greedy_after_s:
        for _ in range(pace.due(time.monotonic() - start_s)):
            producer.produce(client.topic, value)
        producer.poll(0)
    # As fast as it can, with a bounded number of records in flight.
    while not done.is_set():
        while len(producer) < IN_FLIGHT:
            producer.produce(client.topic, value)
        producer.poll(TICK_S)
    producer.flush(CLOSE_S / 2)


def main(bootstrap: str) -> int:
    """Runs until stdin ends, or until a client fails."""
    done = threading.Event()
    running: list[Future[None]] = []
    with ThreadPoolExecutor(max_workers=9) as pool:

        def watch(client: Future[None]) -> None:
            running.append(client)
            client.add_done_callback(lambda _future: done.set())

        def obey() -> None:
            for _line in sys.stdin:
                for client in clients("librdkafka", "producer"):
                    watch(pool.submit(_produce, bootstrap, client, done))
            done.set()

        consumers = [(client, threading.Event()) for client in clients("librdkafka", "consumer")]
        for client, joined in consumers:
            watch(pool.submit(_consume, bootstrap, client, joined, done))
        while not done.is_set() and not all(joined.is_set() for _, joined in consumers):
            done.wait(TICK_S)
        print("consuming", flush=True)  # noqa: T201 - the other end waits for it
        pool.submit(obey)
        done.wait()
    for future in running:
        future.result()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
