"""The metrics that levels read exist under these names in a real Java client (KIP-714's names of its metrics)."""

from typing import Any

import pytest

from headroom.demo.jvm import Jvm
from quota_metrics.verdict.client_signals import SIGNALS

pytestmark = pytest.mark.java

# It appears with the first connection to a node; tests/kafka_clients/test_families.py sees it pushed.
_BY_NODE = {"org.apache.kafka.producer.node.request.latency.max"}


def telemetry_names(client: Any) -> set[str]:
    """The client's metrics as it names them in a push."""
    found = set()
    for key in list(client.metrics().keySet()):
        group = key.group().removesuffix("-metrics").replace("-", ".")
        found.add(f"org.apache.kafka.{group}.{key.name().replace('-', '.')}")
    return found


def test_java_clients_have_the_metrics_of_the_table(jvm: Jvm) -> None:
    producer = jvm.producer("127.0.0.1:1", "signals")
    consumer = jvm.consumer("127.0.0.1:1", "signals", "signals")
    share = jvm.classes.org.apache.kafka.clients.consumer.KafkaShareConsumer(
        jvm.properties(
            {
                "bootstrap.servers": "127.0.0.1:1",
                "group.id": "signals",
                "key.deserializer": "org.apache.kafka.common.serialization.ByteArrayDeserializer",
                "value.deserializer": "org.apache.kafka.common.serialization.ByteArrayDeserializer",
            }
        )
    )
    names = telemetry_names(producer) | telemetry_names(consumer) | telemetry_names(share)
    for client in (producer, consumer, share):
        client.close(jvm.duration(0))
    expected = {signal.metric for signal in SIGNALS if "java" in signal.families} - _BY_NODE
    assert expected - names == set()
