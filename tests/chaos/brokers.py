"""`python -m tests.chaos.brokers ROUNDS`: each of three brokers is restarted in turn, ROUNDS times, under load.

Idempotent producers and groups of Java and librdkafka work through the gateway and, at the same time, directly: through
the gateway none of them may report an error that the direct one does not, and no record may be missing or there twice.
"""

import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from py4j.protocol import Py4JJavaError

from headroom.demo.broker import LocalCluster
from headroom.demo.jars import find_java, kafka_libs
from headroom.demo.jvm import Admin, Jvm
from tests.kit.kafka.records import consumed_by_librdkafka
from tests.kit.serving import Served, running

DIRECTORY = Path("build/chaos-brokers")
PARTITIONS = 3
TICK_S = 0.01
QUIET_S = 3.0  # between two restarts, so that partitions regain all replicas
PATIENCE_S = 90.0
_PROPERTIES = {
    "offsets.topic.replication.factor": "3",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "controlled.shutdown.enable": "true",
    "broker.session.timeout.ms": "6000",
}


class JavaSender:
    """`finish` waits until everything is acknowledged, and returns the errors."""

    def __init__(self, jvm: Jvm, bootstrap: str, topic: str) -> None:
        self._record = jvm.classes.org.apache.kafka.clients.producer.ProducerRecord
        self._producer = jvm.producer(bootstrap, f"{topic}-producer", enable_idempotence="true", acks="all")
        self._topic = topic
        self._sent: list[Any] = []

    def send(self, value: bytes) -> None:
        self._sent.append(self._producer.send(self._record(self._topic, value)))

    def finish(self) -> list[str]:
        self._producer.flush()
        errors = []
        for sent in self._sent:
            try:
                sent.get()
            except Py4JJavaError as exc:
                errors.append(str(exc.java_exception.getCause().getClass().getSimpleName()))
        self._producer.close()
        return errors


class LibrdkafkaSender:
    """As JavaSender."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        self._topic = topic
        self._errors: list[str] = []

    def send(self, value: bytes) -> None:
        self._producer.produce(self._topic, value, on_delivery=self._delivered)
        self._producer.poll(0)

    def finish(self) -> list[str]:
        left = self._producer.flush(PATIENCE_S)
        return self._errors + ["not acknowledged"] * left

    def _delivered(self, error: Any, _: Any) -> None:
        if error is not None:
            self._errors.append(error.name())


class Group:
    """A consumer of a group in a thread: what it read, by partition and offset, and its fatal errors."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.read: dict[tuple[int, int], bytes] = {}
        self.errors: list[str] = []
        self._config = {"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
        self._topic = topic
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def finish(self, count: int) -> None:
        """Waits until it has read that many records."""
        deadline = time.monotonic() + PATIENCE_S
        while len(self.read) < count and time.monotonic() < deadline:
            time.sleep(0.1)
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        consumer = Consumer(self._config)
        consumer.subscribe([self._topic])
        while not self._done.is_set():
            try:
                for message in consumer.consume(500, 0.2):
                    error, value = message.error(), message.value()
                    if error is None:
                        assert value is not None
                        self.read[message.partition() or 0, message.offset() or 0] = value
                    elif error.fatal():
                        self.errors.append(error.name())
            except KafkaException as exc:
                self.errors.append(exc.args[0].name())
        consumer.close()


class Way:
    """One family's producer and group, through the gateway or directly."""

    def __init__(self, name: str, sender: JavaSender | LibrdkafkaSender, group: Group) -> None:
        self.name = name
        self.sender = sender
        self.group = group
        self.sent = 0
        self.errors: list[str] = []

    def step(self) -> None:
        self.sent += 1
        self.sender.send(b"%d" % self.sent)

    def finish(self) -> None:
        self.errors = self.sender.finish()
        self.group.finish(self.sent)
        self.errors += self.group.errors

    def audit(self, bootstrap: str) -> bool:
        """Prints what the log holds; whether each record is there once, and was read."""
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"{self.name}-audit"})
        partitions = [TopicPartition(self.name, number, OFFSET_BEGINNING) for number in range(PARTITIONS)]
        count = sum(consumer.get_watermark_offsets(partition, PATIENCE_S)[1] for partition in partitions)
        consumer.assign(partitions)
        stored = Counter(consumed_by_librdkafka(consumer, (), count))
        consumer.close()
        expected = {b"%d" % number for number in range(1, self.sent + 1)}
        lost, doubled = len(expected - stored.keys()), sum(count - 1 for count in stored.values())
        unread = len(expected - set(self.group.read.values()))
        print(f"{self.name}: sent={self.sent} lost={lost} doubled={doubled} unread={unread} errors={self.errors}")
        return not (lost or doubled or unread)


def send(ways: Sequence[Way], done: threading.Event) -> None:
    while not done.wait(TICK_S):
        for way in ways:
            way.step()


def main(rounds: int) -> int:
    """Prints a line for each way; returns 0 when nothing is lost, doubled or reported as an error by the gateway
    alone."""
    java = find_java()
    libs = kafka_libs(java)
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    DIRECTORY.mkdir(parents=True)
    with LocalCluster(java, libs, 3, _PROPERTIES) as cluster, Jvm(java, libs) as jvm:
        topics = [f"{family}-{way}" for way in ("direct", "gateway") for family in ("java", "librdkafka")]
        with Admin(jvm, cluster.bootstrap) as admin:
            admin.create_topics(topics, PARTITIONS, 3)
        with Served(DIRECTORY.absolute(), "--upstream", cluster.bootstrap) as served:
            ways = []
            for topic in topics:
                bootstrap = served.kafka if topic.endswith("gateway") else cluster.bootstrap
                sender = JavaSender(jvm, bootstrap, topic) if "java" in topic else LibrdkafkaSender(bootstrap, topic)
                ways.append(Way(topic, sender, Group(bootstrap, topic)))
            with running(partial(send, ways)):
                # Here: a broker ends with the thread that started it. The controller, which is the first node, is last.
                for broker in rounds * [*cluster.brokers[1:], cluster.brokers[0]]:
                    began_s = time.monotonic()
                    broker.stop()
                    broker.start_again()
                    broker.wait_ready()
                    print(f"restarted {broker.log.parent.name} in {time.monotonic() - began_s:.1f} s", flush=True)
                    time.sleep(QUIET_S)
            for way in ways:
                way.finish()
        complete = [way.audit(cluster.bootstrap) for way in ways]
    by_name = {way.name: set(way.errors) for way in ways}
    ours = {f: by_name[f"{f}-gateway"] - by_name[f"{f}-direct"] for f in ("java", "librdkafka")}
    print(f"chaos brokers restarts={3 * rounds} errors that only the gateway's clients had: {ours}")
    return 0 if all(complete) and not any(ours.values()) else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1))
