"""One cell of the matrix: a client of one release through `headroom serve` before a broker of another.

Each step of a client raises what the client raises.
"""

import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import confluent_kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headroom.demo.jars import KAFKA_VERSION, kafka_libs
from headroom.demo.jvm import Admin, Jvm
from headroom.demo.processes import Service
from tests.kit.kafka.client_jars import client_libs
from tests.kit.kafka.records import consumed_by_java, consumed_by_librdkafka, produced_by_java
from tests.kit.serving import Served, config_file, eventually, rows
from tests.matrix.releases import ReleaseCluster, has_client_metrics, number, release_libs

JAVA: Final = ("2.8.2", "3.6.2", "3.9.1", KAFKA_VERSION)
RECORDS: Final = [b"%d-" % at + bytes(size) for at, size in enumerate((0, 100, 1_000, 30_000) * 5)]
LIMIT: Final = 12_000  # bytes per second: RECORDS are 15.5 kB/s over the ten seconds of a window
_PATIENCE_S = 60.0
CLUSTER = "matrix"


class JavaClient(Service):
    """Kafka's Java clients of a release in a JVM of their own."""

    def __init__(self, java: str, release: str, cache: Path) -> None:
        self.name = f"Java {release}"
        self.pushes = number(release) >= (3, 7)
        own = release == KAFKA_VERSION
        libs = kafka_libs(java, cache / f"kafka-{release}") if own else client_libs(
            java, release, cache / f"kafka-clients-{release}"
        )  # fmt: skip
        self.jvm = Jvm(java, libs)

    def start(self) -> None:
        self.jvm.start()

    def stop(self) -> None:
        self.jvm.stop()

    def administers(self, bootstrap: str, topic: str) -> None:
        """Creates a topic and a quota, and finds the topic."""
        with Admin(self.jvm, bootstrap) as admin:
            admin.create_topics([topic])
            admin.alter_quota({"client-id": f"{topic}-slow"}, {"producer_byte_rate": float(LIMIT)})
        with_list = self.jvm.admin(bootstrap)
        found = list(with_list.listTopics().names().get())
        with_list.close()
        if topic not in found:
            raise AssertionError(f"the topic is not among {found}")

    def produces(self, bootstrap: str, topic: str, client_id: str, **config: str) -> None:
        """All records, acknowledged; in a transaction with `transactional_id`."""
        producer = self.jvm.producer(bootstrap, client_id, **config)
        if config:
            producer.initTransactions()
            producer.beginTransaction()
        produced_by_java(self.jvm, producer, topic, RECORDS)
        if config:
            producer.commitTransaction()
        producer.close()

    def consumes(self, bootstrap: str, topic: str, client_id: str, until: Callable[[], bool]) -> list[bytes]:
        """Reads committed records in a group, and goes on until `until`."""
        consumer = self.jvm.consumer(bootstrap, client_id, f"{topic}-j", isolation_level="read_committed")
        seen = consumed_by_java(self.jvm, consumer, topic, 2 * len(RECORDS), until)
        consumer.close()
        return sorted(seen)


class LibrdkafkaClient:
    """librdkafka, as confluent-kafka ships it. `set_quota`: sets what its own API cannot."""

    def __init__(self, set_quota: Callable[[str], None]) -> None:
        self.name = f"librdkafka {confluent_kafka.libversion()[0]}"
        self.pushes = True
        self._set_quota = set_quota

    def administers(self, bootstrap: str, topic: str) -> None:
        """Creates a topic and finds it; it has no call that alters quotas."""
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for created in admin.create_topics([NewTopic(topic, 1, 1)]).values():
            created.result(_PATIENCE_S)
        if topic not in admin.list_topics(timeout=_PATIENCE_S).topics:
            raise AssertionError("the topic is not listed")
        self._set_quota(f"{topic}-slow")

    def produces(self, bootstrap: str, topic: str, client_id: str, **config: str) -> None:
        """All records, acknowledged; in a transaction with `transactional_id`."""
        faults: list[Any] = []
        named = {name.replace("_", "."): value for name, value in config.items()}
        producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "client.id": client_id, **named})
        if config:
            producer.init_transactions(_PATIENCE_S)
            producer.begin_transaction()
        for value in RECORDS:
            producer.produce(topic, value, on_delivery=lambda error, _: faults.append(error) if error else None)
        left = producer.flush(_PATIENCE_S)
        if config:
            producer.commit_transaction(_PATIENCE_S)
        if faults or left:
            raise AssertionError(f"{left} records are not sent, {faults[:1]}")

    def consumes(self, bootstrap: str, topic: str, client_id: str, until: Callable[[], bool]) -> list[bytes]:
        """Reads committed records in a group, and goes on until `until`."""
        named = {"bootstrap.servers": bootstrap, "client.id": client_id, "group.id": f"{topic}-l"}
        consumer = confluent_kafka.Consumer({**named, "auto.offset.reset": "earliest"})
        seen = consumed_by_librdkafka(consumer, [topic], 2 * len(RECORDS), until)
        consumer.close()
        return sorted(seen)


class OldLibrdkafkaClient:
    """librdkafka 1.9, as the Go client of that time ships it; builds a program with `go`."""

    pushes = False

    def __init__(self, go: str, set_quota: Callable[[str], None], program: Path) -> None:
        self.name = "librdkafka 1.9.2"
        self._set_quota = set_quota
        self._program = program
        if not program.exists():
            source = Path(__file__).parent / "librdkafka_1_9"
            subprocess.run([go, "build", "-o", str(program), "."], cwd=source, check=True)

    def administers(self, bootstrap: str, topic: str) -> None:
        """Creates a topic; it has no call that alters quotas."""
        self._run("administer", bootstrap, topic, topic)
        self._set_quota(f"{topic}-slow")

    def produces(self, bootstrap: str, topic: str, client_id: str, **config: str) -> None:
        """All records, acknowledged; in a transaction with `transactional_id`."""
        self._run("transact" if config else "produce", bootstrap, topic, client_id)

    def consumes(self, bootstrap: str, topic: str, client_id: str, until: Callable[[], bool]) -> list[bytes]:
        """Reads committed records in a group. It has no telemetry that `until` could wait for."""
        assert until()
        numbered = [line.split() for line in self._run("consume", bootstrap, topic, client_id).splitlines()]
        return sorted(number.encode() + b"-" + bytes(int(size) - len(number) - 1) for number, size in numbered)

    def _run(self, *arguments: str) -> str:
        done = subprocess.run([self._program, *arguments], capture_output=True, text=True, timeout=2 * _PATIENCE_S)
        if done.returncode:
            raise AssertionError(done.stderr.strip())
        return done.stdout


Client = JavaClient | LibrdkafkaClient | OldLibrdkafkaClient


class ServedRelease(NamedTuple):
    """A broker of a release and the Headroom before it."""

    release: str
    broker: str
    served: Served


@contextmanager
def served_release(java: str, release: str, cache: Path, directory: Path, jvm: Jvm) -> Iterator[ServedRelease]:
    """`jvm`: of the current release, whose Admin sets the subscription where brokers have CLIENT_METRICS; a file does
    before."""
    directory.mkdir(parents=True)
    arguments = ["--cluster", CLUSTER]
    with ExitStack() as stack:
        cluster = stack.enter_context(ReleaseCluster(java, release, release_libs(java, release, cache)))
        if has_client_metrics(release):
            admin = stack.enter_context(Admin(jvm, cluster.bootstrap))
            admin.set_subscription("each-second", "*", 1_000)
        else:
            arguments += config_file(directory, push_ms=1000)
        served = stack.enter_context(Served(directory, "--upstream", cluster.bootstrap, *arguments))
        yield ServedRelease(release, cluster.bootstrap, served)


def faults(at: ServedRelease, client: Client) -> list[str]:
    """What does not work; nothing is tried after the first one that fails."""
    topic = f"m-{at.release}-{uuid.uuid4().hex[:6]}"
    kafka, sql = at.served.kafka, at.served.sql
    steps: list[tuple[str, Callable[[], object]]] = [
        ("administration", lambda: client.administers(kafka, topic)),
        ("produce", lambda: client.produces(kafka, topic, f"{topic}-p")),
        ("transaction", lambda: client.produces(kafka, topic, f"{topic}-t", transactional_id=topic)),
        ("consume", lambda: _consumes(client, at, topic)),
        ("throttling", lambda: client.produces(kafka, topic, f"{topic}-slow")),
        ("usage and quota", lambda: _is_metered(sql, f"{topic}-slow")),
    ]
    for name, step in steps:
        try:
            step()
        except Exception as exc:  # noqa: BLE001 - whatever a client of another release raises is the finding
            return [f"{name}: {type(exc).__name__}: {str(exc).strip().splitlines()[0] if str(exc) else ''}"]
    return []


def _consumes(client: Client, at: ServedRelease, topic: str) -> None:
    client_id = f"{topic}-c"
    seen = client.consumes(at.served.kafka, topic, client_id, lambda: not client.pushes or _pushed(at, client_id) > 0)
    if seen != sorted(RECORDS * 2):
        raise AssertionError(f"{len(seen)} of {2 * len(RECORDS)} records were read")
    if client.pushes and not _pushed(at, client_id):
        raise AssertionError("no telemetry")


def _pushed(at: ServedRelease, client_id: str) -> int:
    """Metrics that a client pushed."""
    query = """SELECT uniqExact(metric) FROM headroom.client_metrics
               WHERE cluster = {cluster:String} AND client_id = {client_id:String}"""
    return int(rows(at.served.sql, query, cluster=CLUSTER, client_id=client_id)[0][0])


def _is_metered(sql: str, client_id: str) -> None:
    query = """SELECT max(`limit`), max(throttle_ms) > 0, sum(bytes) FROM headroom.quota_usage
               WHERE client_id = {client_id:String} AND quota_key = 'producer_byte_rate'"""
    least = sum(map(len, RECORDS))
    eventually(
        lambda: rows(sql, query, client_id=client_id)[0],
        lambda found: found[:2] == (LIMIT, 1) and found[2] >= least,
    )
