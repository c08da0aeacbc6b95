"""What-if against reality: a recorded load is evaluated under other quotas and then run again under them.

Throttled seconds are the same thing in all three places: the union of the
throttle times in the responses that the gateway saw, until the end of the load.
"""

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from typer.testing import CliRunner

from headroom.cli.main import app
from headroom.demo.broker import LocalCluster
from headroom.demo.jvm import Admin, Jvm
from headroom.demo.scenario import Serving
from headroom.demo.script import Pace
from tests.kit.serving import eventually, rows

pytestmark = [pytest.mark.release, pytest.mark.kafka, pytest.mark.java, pytest.mark.clickhouse, pytest.mark.alone]

SECONDS = 60
GENEROUS = {"producer_byte_rate": 10_000_000.0, "consumer_byte_rate": 10_000_000.0}
CHANGED = {"producer_byte_rate": 75_000.0, "consumer_byte_rate": 50_000.0}
EVERYONE = {"client-id": None}
TICK_S = 0.1
RECORD_BYTES = 4_000
JOIN_TIMEOUT_S = 90.0


@dataclass(frozen=True)
class Paced:
    """A producer that wants `bytes_per_s` for some seconds, then another rate, and so on."""

    client_id: str
    topic: str
    phases: tuple[tuple[float, float], ...]  # seconds, bytes/s

    def send(self, send: Callable[[], None]) -> None:
        for seconds, bytes_per_s in self.phases:
            pace, start_s = Pace(bytes_per_s, RECORD_BYTES, ramp_s=1.0), time.monotonic()
            while (elapsed_s := time.monotonic() - start_s) < seconds:
                time.sleep(TICK_S)
                for _ in range(pace.due(elapsed_s)):
                    send()


LIBRDKAFKA = (
    Paced("what-if-feed", "what-if-fed", ((SECONDS, 65_000),)),  # below its quota, above that of its reader
    Paced("what-if-over", "what-if-any", ((SECONDS, 105_000),)),
    Paced("what-if-burst", "what-if-any", ((20, 120_000), (SECONDS - 20, 35_000))),
    Paced("what-if-under", "what-if-under", ((SECONDS, 35_000),)),
)
JAVA = (
    Paced("what-if-java-over", "what-if-any", ((SECONDS, 95_000),)),
    Paced("what-if-java-under", "what-if-any", ((SECONDS, 30_000),)),
)
CONSUMERS = (("what-if-slow-reader", "what-if-fed"), ("what-if-reader", "what-if-under"))  # client id, topic
THROTTLED = {"what-if-over", "what-if-burst", "what-if-java-over", "what-if-slow-reader"}
NOT_THROTTLED = {"what-if-feed", "what-if-under", "what-if-java-under", "what-if-reader"}


@dataclass
class Reported:
    """The throttling that librdkafka reported to its application: by client id, when and how long, in seconds."""

    events: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))

    def callback(self, client_id: str) -> Callable[[Any], None]:
        return lambda event: self.events[client_id].append((time.time(), event.throttle_time))

    def throttled_s(self, client_id: str, end_s: float) -> float:
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
class Run:
    """One time that the load ran, in seconds of the epoch, and what librdkafka reported of throttling."""

    begin_s: int
    end_s: int
    reported: Reported

    def asked(self, sql: str, change: str) -> dict[str, dict[str, Any]]:
        """What `headroom quotas what-if` says of the clients in it, by client id."""
        when = ["--from", str(self.begin_s), "--to", str(self.end_s)]
        command = ["quotas", "what-if", "--client-defaults", *change.split(), *when, "--output", "json"]
        result = CliRunner().invoke(app, [*command, "--url", f"http://{sql}"])
        assert result.exit_code == 0, result.output
        rows = [row for row in json.loads(result.stdout)["clients"] if row["client_id"] in THROTTLED | NOT_THROTTLED]
        assert len(rows) == len(THROTTLED | NOT_THROTTLED)
        return {row["client_id"]: row for row in rows}


def run(jvm: Jvm, bootstrap: str, group: str) -> Run:
    reported = Reported()
    with ExitStack() as stack:
        for client_id, topic in CONSUMERS:
            stack.enter_context(consuming(bootstrap, client_id, topic, f"{group}-{client_id}", reported))
        senders = [
            (paced, stack.enter_context(librdkafka_producer(bootstrap, paced, reported))) for paced in LIBRDKAFKA
        ]
        senders += [(paced, stack.enter_context(java_producer(jvm, bootstrap, paced))) for paced in JAVA]
        begin_s = int(time.time())
        with ThreadPoolExecutor(len(senders)) as pool:
            for sending in [pool.submit(paced.send, send) for paced, send in senders]:
                sending.result()
        return Run(begin_s, int(time.time()), reported)


@pytest.fixture(scope="module")
def runs(
    kafka: LocalCluster, kafka_admin: Admin, jvm: Jvm, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Run, Run, str]]:
    """The load under generous quotas and under changed ones, and where the recording is."""
    kafka_admin.create_topics(["what-if-fed", "what-if-any", "what-if-under"])
    serving = Serving(kafka.bootstrap, tmp_path_factory.mktemp("what-if"))
    try:
        kafka_admin.alter_quota(EVERYONE, GENEROUS)
        serving.start()
        recorded = run(jvm, serving.kafka, "recorded")
        kafka_admin.alter_quota(EVERYONE, CHANGED)
        time.sleep(11)  # the broker's windows are empty then, as they were before
        real = run(jvm, serving.kafka, "real")
        # Rows of a client go on for the ten seconds of its window, so newer ones come.
        newest = "SELECT toUnixTimestamp(max(ts)) FROM headroom.quota_usage"
        eventually(lambda: rows(serving.sql, newest)[0][0], lambda stored_s: stored_s > real.end_s + 1)
        yield recorded, real, serving.sql
    finally:
        kafka_admin.alter_quota(EVERYONE, dict.fromkeys(GENEROUS))
        serving.stop()


def change(values: dict[str, float]) -> str:
    return "--add " + ",".join(f"{key}={value:.0f}" for key, value in values.items())


def test_predicted_throttling_matches_the_real_run(runs: tuple[Run, Run, str]) -> None:
    recorded, real, sql = runs
    predicted, truth = recorded.asked(sql, change(CHANGED)), real.asked(sql, change(CHANGED))
    compared = {
        client_id: (row["after"]["throttled_s"], truth[client_id]["before"]["throttled_s"])
        for client_id, row in predicted.items()
    }
    print(
        *(f"what-if {name} predicted={was:.1f} real={is_:.1f} unit=s" for name, (was, is_) in compared.items()),
        sep="\n",
    )
    assert {client_id for client_id, row in predicted.items() if row["verdict"] == "newly throttled"} == THROTTLED
    assert {client_id for client_id, (_, seconds) in compared.items() if seconds} == THROTTLED
    assert {client_id for client_id, row in predicted.items() if row["verdict"] == "unchanged"} == NOT_THROTTLED
    for client_id in THROTTLED:
        predicted_s, real_s = compared[client_id]
        assert predicted_s == pytest.approx(real_s, rel=0.2), compared
        assert predicted[client_id]["before"] == {
            "limit": 10_000_000.0,
            "entity": {"client-id": None},
            "throttled_s": 0,
            "throttle_ms_max": 0,
        }


def test_throttled_seconds_match_client_reports(runs: tuple[Run, Run, str]) -> None:
    _, real, sql = runs
    truth = real.asked(sql, change(CHANGED))
    for client_id in ("what-if-over", "what-if-burst", "what-if-slow-reader"):
        reported_s = real.reported.throttled_s(client_id, real.end_s)
        assert truth[client_id]["before"]["throttled_s"] == pytest.approx(reported_s, rel=0.1)


def test_removing_the_limit_is_predicted_to_free_all_clients(runs: tuple[Run, Run, str]) -> None:
    """The throttled run evaluated under generous quotas and under none: the first run shows that all are freed."""
    _, real, sql = runs
    for other in (change(GENEROUS), "--delete producer_byte_rate,consumer_byte_rate"):
        answer = real.asked(sql, other)
        assert {client_id for client_id, row in answer.items() if row["verdict"] == "freed"} == THROTTLED
        assert {client_id for client_id, row in answer.items() if row["verdict"] == "unchanged"} == NOT_THROTTLED
