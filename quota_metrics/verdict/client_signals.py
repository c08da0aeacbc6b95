"""What each client metric of KIP-714 means: the one table of which software reports what. Data only.

A Java application that runs Kafka Streams or Connect pushes the metrics of the producers and consumers inside it, each
under the client id of that client, so the rows of the Java producer and consumer serve both. librdkafka (reference: its
STATISTICS.md and 2.16's rd_kafka_telemetry) has neither lag nor failures, and franz-go has what librdkafka has.
Names: KIP-714's prefix and the groups of the Java client, `producer-metrics` as `producer` and so on.
"""

import re
from typing import Final, Literal, NamedTuple

_PREFIX: Final = "org.apache.kafka."

Family = Literal["java", "librdkafka", "franz-go"]
JAVA: Final[tuple[Family, ...]] = ("java",)
ALL: Final[tuple[Family, ...]] = ("java", "librdkafka", "franz-go")


class Signal(NamedTuple):
    """What a metric says about its client. telemetry.sql folds the values of a window, and of instances, to one."""

    name: str  # of the column
    metric: str
    families: tuple[Family, ...]


def _signal(name: str, metric: str, families: tuple[Family, ...]) -> Signal:
    return Signal(name, _PREFIX + metric, families)


# `.max` and not `.avg`: Java's `.avg` also averages over responses without a throttle time. Totals are deltas: the
# receiver requests delta temporality. A batch that expires (delivery.timeout.ms) counts as failed records in Java. A
# consumer's request latency says nothing: its Fetch waits for records (fetch.max.wait.ms).
SIGNALS: Final = (
    _signal("produce_throttle_ms", "producer.produce.throttle.time.max", ALL),
    _signal("fetch_throttle_ms", "consumer.fetch.manager.fetch.throttle.time.max", JAVA),
    _signal("fetch_throttle_ms", "consumer.share.fetch.manager.fetch.throttle.time.max", ("java", "librdkafka")),
    _signal("request_latency_ms", "producer.request.latency.max", ("java", "librdkafka")),
    _signal("request_latency_ms", "producer.node.request.latency.max", ALL),
    _signal("queue_time_ms", "producer.record.queue.time.max", ALL),
    _signal("rebalances", "consumer.coordinator.rebalance.total", JAVA),
    _signal("rebalances", "consumer.share.coordinator.rebalance.total", JAVA),
    _signal("records_lag", "consumer.fetch.manager.records.lag.max", JAVA),
    _signal("records_failed", "producer.record.error.total", JAVA),
    _signal("records_refused", "producer.buffer.exhausted.total", JAVA),
    _signal("records_retried", "producer.record.retry.total", JAVA),
    _signal("outgoing_bytes", "producer.outgoing.byte.total", JAVA),
    _signal("outgoing_bytes", "consumer.outgoing.byte.total", JAVA),
    _signal("incoming_bytes", "producer.incoming.byte.total", JAVA),
    _signal("incoming_bytes", "consumer.incoming.byte.total", JAVA),
)
NAMES: Final = tuple(dict.fromkeys(signal.name for signal in SIGNALS))
METRICS: Final = tuple(signal.metric for signal in SIGNALS)

# delivery.timeout.ms of Java, message.timeout.ms of librdkafka, by their defaults: after it a waiting record is lost.
# franz-go has no default (RecordDeliveryTimeout). A binding of librdkafka names itself.
_BINDINGS: Final = tuple(f"confluent-kafka-{language}" for language in ("python", "go", "dotnet", "javascript"))
DELIVERY_TIMEOUT_MS: Final = {
    "apache-kafka-java": 120_000.0,
    **dict.fromkeys(("librdkafka", *_BINDINGS), 300_000.0),
}
# In client ids: Connect's producers have no such timeout (Worker), Streams processes again what failed or expired.
OF_STREAMS: Final = "-StreamThread-"
LOSES_NOTHING_BY_WAITING: Final = re.compile(f"^connector-(dlq-)?producer-|{OF_STREAMS}")


def metrics_of(name: str) -> tuple[str, ...]:
    """The metrics behind a column."""
    return tuple(signal.metric for signal in SIGNALS if signal.name == name)
