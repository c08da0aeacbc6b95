"""Compares our measurements of throttled clients with those of their broker: same load, same moments.

Like with like: the rate is Kafka's window rate on both sides, read at the same moment. The broker's throttle-time is
the mean of the throttle times above 0 in two samples of 30 s; ours is made the same way of what the wire announced.
"""

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from confluent_kafka import Consumer, Producer

from exporters.model import Exchange, ExchangeValues
from headroom.clock import now_ms
from headroom.demo.broker import LocalCluster
from headroom.demo.jars import KAFKA_VERSION, fetch_once
from headroom.demo.jvm import Admin, Jvm
from headroom.demo.processes import LOOPBACK, free_ports
from quota_metrics.jmx.scrape import Agent, Target
from quota_metrics.measure.usage_meter import UsageMeter
from quota_metrics.windows import Rate
from tests.kit.kafka.jmx import jmx_options
from tests.kit.serving import running
from tests.telemetry.conftest import RunningGateway

PRODUCER, CONSUMER = "producer_byte_rate", "consumer_byte_rate"
MUTATIONS, MUTATES = "controller_mutation_rate", "mutator"
BEANS = {"Produce": PRODUCER, "Fetch": CONSUMER}
USER = "ANONYMOUS"
PRODUCES, CONSUMES = "metered-p", 'metered:c "1"'  # the other is one that JMX quotes
STEADY, BURSTY, IDLE = "metered-steady", "metered-bursty", "metered-idle"
RECORD_BYTES = 10_000
WARM_UP_S = 15.0  # until the windows have filled
EVERY_S = 0.5

_AGENTS = """
    <dependency org="io.prometheus.jmx" name="jmx_prometheus_javaagent" rev="1.0.1" transitive="false"/>
    <dependency org="org.jolokia" name="jolokia-agent-jvm" rev="2.5.1" transitive="false">
      <artifact name="jolokia-agent-jvm" type="jar" ext="jar" m:classifier="javaagent"/>
    </dependency>
"""

Bucket = tuple[str, str, str]  # quota key, user, client-id of the metric's tags


def agents(java: str, cache: Path) -> Path:
    """Directory of the two JMX agents, beside the Kafka jars."""
    directory = (cache / f"kafka-{KAFKA_VERSION}" / "agents" / "libs").absolute()
    fetch_once(java, directory, _AGENTS, print, "the JMX agents")
    return directory


class Truth:
    def __init__(self, jvm: Jvm, port: int) -> None:
        self._management = jvm.classes.javax.management
        url = self._management.remote.JMXServiceURL(f"service:jmx:rmi:///jndi/rmi://{LOOPBACK}:{port}/jmxrmi")
        self._connector = self._management.remote.JMXConnectorFactory.connect(url)
        self._beans = self._connector.getMBeanServerConnection()

    def close(self) -> None:
        self._connector.close()

    def sensors(self) -> dict[Bucket, tuple[float, float]]:
        values_by_client = {}
        for kind, quota_key in BEANS.items():
            for name in self._beans.queryNames(self._management.ObjectName(f"kafka.server:type={kind},*"), None):
                user, client_id = (self._name(name.getKeyProperty(key)) for key in ("user", "client-id"))
                if user or client_id:
                    values = [self._beans.getAttribute(name, key) for key in ("byte-rate", "throttle-time")]
                    values_by_client[quota_key, user, client_id] = (values[0], values[1])
        return values_by_client

    def mutation_rate(self, client_id: str) -> float:
        """The controller's mutation-rate, which is in the same process: a Rate over two samples of 30 s."""
        name = self._management.ObjectName(f"kafka.server:type=ControllerMutation,client-id={client_id}")
        return float(self._beans.getAttribute(name, "mutation-rate"))

    def _name(self, value: str | None) -> str:
        quoted = value is not None and value.startswith('"')
        return self._management.ObjectName.unquote(value) if quoted else value or ""


@dataclass(frozen=True)
class Loaded:
    """A broker at `bootstrap` under load through a gateway."""

    bootstrap: str
    truth: Truth
    gateway: RunningGateway
    agents: dict[Agent, Target]


@contextmanager
def loaded_broker(java: str, libs: Path, jvm: Jvm, root: Path, directory: Path) -> Iterator[Loaded]:
    """A real broker with JMX and both agents, throttled clients in front of it. `root` is the checkout."""
    jars = agents(java, root / ".cache")
    prometheus, jolokia, rmi = free_ports(3)
    rules = root / "deploy" / "jmx" / "kafka-quotas.yml"
    options = [
        f"-javaagent:{jars}/jmx_prometheus_javaagent-1.0.1.jar={LOOPBACK}:{prometheus}:{rules}",
        f"-javaagent:{jars}/jolokia-agent-jvm-2.5.1.jar=port={jolokia},host={LOOPBACK},discoveryEnabled=false",
        *jmx_options(rmi),
    ]
    targets = {
        Agent.PROMETHEUS: Target(1, Agent.PROMETHEUS, f"http://{LOOPBACK}:{prometheus}/metrics"),
        Agent.JOLOKIA: Target(1, Agent.JOLOKIA, f"http://{LOOPBACK}:{jolokia}/jolokia/"),
    }
    with LocalCluster(java, libs, jvm_options=options) as kafka, Admin(jvm, kafka.bootstrap) as admin:
        admin.create_topics(["load"])
        set_quotas(admin)
        truth = Truth(jvm, rmi)
        gateway = RunningGateway(kafka.bootstrap, directory, WitnessMeter(bucket_of))
        try:
            with load(gateway.bootstrap, "load"):
                time.sleep(WARM_UP_S)
                yield Loaded(kafka.bootstrap, truth, gateway, targets)
        finally:
            gateway.stop()
            truth.close()


class WitnessMeter(UsageMeter):
    """Also keeps the mean of the throttle times above 0 as the broker's Avg does."""

    def __init__(self, bucket_of: Callable[[str, str], Bucket]) -> None:
        super().__init__("test")
        self._bucket_of = bucket_of
        self._throttles: dict[Bucket, tuple[Rate, Rate]] = {}

    def exchange(self, values: ExchangeValues) -> None:
        super().exchange(values)
        exchange = Exchange(*values)
        if exchange.throttle_ms > 0 and exchange.api_key in (0, 1):
            bucket = self._bucket_of(PRODUCER if exchange.api_key == 0 else CONSUMER, exchange.client_id)
            # Sums and counts over the same samples: the elapsed time cancels out of their quotient.
            for rate, value in zip(self._throttle(bucket), (exchange.throttle_ms, 1), strict=True):
                rate.record(value, exchange.now_ms)

    def throttle_ms(self, bucket: Bucket, at_ms: int) -> float:
        total, count = (rate.measure(at_ms) for rate in self._throttle(bucket))
        return total / count if count else float("nan")

    def _throttle(self, bucket: Bucket) -> tuple[Rate, Rate]:
        return self._throttles.setdefault(bucket, (Rate(2, 30_000), Rate(2, 30_000)))


SHARED: Bucket = (PRODUCER, USER, "")


def bucket_of(quota_key: str, client_id: str) -> Bucket:
    """The metric tags of the clients of `load` under the quotas of `set_quotas`."""
    return SHARED if client_id.startswith("shared") else (quota_key, USER, client_id)


def set_quotas(admin: Admin) -> None:
    admin.alter_quota({"user": USER, "client-id": PRODUCES}, {PRODUCER: 300_000.0, "request_percentage": 900.0})
    admin.alter_quota({"user": USER, "client-id": CONSUMES}, {CONSUMER: 200_000.0})
    admin.alter_quota({"user": USER}, {PRODUCER: 400_000.0})
    for client_id in (STEADY, BURSTY, IDLE):
        admin.alter_quota({"user": USER, "client-id": client_id}, {PRODUCER: 10_000_000.0})
    admin.alter_quota({"client-id": MUTATES}, {MUTATIONS: 100.0})


def load(bootstrap: str, topic: str) -> AbstractContextManager[None]:
    """A producer and a consumer that want more than they may, and two producers that share a user's quota."""
    return running(
        partial(produce, bootstrap, topic, PRODUCES, 8),
        partial(produce, bootstrap, topic, "shared-1", 8),
        partial(produce, bootstrap, topic, "shared-2", 3),
        partial(consume, bootstrap, topic, CONSUMES),
        partial(produce_at_times, bootstrap, topic, STEADY, 5, 0.5),
        partial(produce_at_times, bootstrap, topic, BURSTY, 60, 7.0),
        partial(produce_at_times, bootstrap, topic, IDLE, 0, 1.0),
    )


def produce(bootstrap: str, topic: str, client_id: str, in_flight: int, done: threading.Event) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": client_id})
    while not done.is_set():
        while len(producer) < in_flight:
            producer.produce(topic, bytes(RECORD_BYTES))
        producer.poll(0.1)
    producer.purge()


def produce_at_times(
    bootstrap: str, topic: str, client_id: str, records: int, every_s: float, done: threading.Event
) -> None:
    """`records` at once, then a pause; with 0 records a client that is connected and sends nothing."""
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": client_id, "linger.ms": 0})
    while not done.wait(every_s):
        for _ in range(records):
            producer.produce(topic, bytes(RECORD_BYTES))
        producer.poll(0)
    producer.purge()


def consume(bootstrap: str, topic: str, client_id: str, done: threading.Event) -> None:
    small = {"fetch.message.max.bytes": 100_000, "queued.max.messages.kbytes": 1_000}
    start = {"group.id": client_id, "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": bootstrap, "client.id": client_id, **start, **small})
    consumer.subscribe([topic])
    while not done.is_set():
        consumer.consume(100, 0.1)
    consumer.close()


def compare(truth: Truth, gateway: RunningGateway, seconds: float) -> dict[tuple[Bucket, str], float]:
    """How far our mean is from the broker's over the same moments, by bucket and 'rate' or 'throttle'. The load runs
    meanwhile."""
    pairs: dict[tuple[Bucket, str], list[tuple[float, float]]] = {}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        brokers = truth.sensors()
        ours = measured(gateway)
        for bucket, values in brokers.items():
            for what, mine, theirs in zip(("rate", "throttle"), ours.get(bucket, ()), values, strict=False):
                if theirs > 0:  # not NaN
                    pairs.setdefault((bucket, what), []).append((mine, theirs))
        time.sleep(EVERY_S)
    means = {place: tuple(map(statistics.fmean, zip(*values, strict=True))) for place, values in pairs.items()}
    return {place: abs(mine - theirs) / theirs for place, (mine, theirs) in means.items()}


def measured(gateway: RunningGateway) -> dict[Bucket, tuple[float, float]]:
    """Our rate, summed over who shares a quota, and our mean of throttle times."""
    meter = gateway.meter
    assert isinstance(meter, WitnessMeter)

    async def rates() -> dict[Bucket, tuple[float, float]]:
        at_ms = now_ms()
        sums: dict[Bucket, float] = {}
        for row in meter.samples(at_ms):
            bucket = bucket_of(row.quota_key, row.client_id)
            sums[bucket] = sums.get(bucket, 0.0) + row.rate
        return {bucket: (rate, meter.throttle_ms(bucket, at_ms)) for bucket, rate in sums.items()}

    return gateway.run(rates())
