"""A real Java producer with pushes larger than the gateway buffers: it gets TELEMETRY_TOO_LARGE (118) and continues."""

import random
from pathlib import Path

import pytest

from headroom.demo.broker import LocalCluster
from headroom.demo.jvm import Admin, Jvm
from tests.kit.serving import Served, config_file, eventually

pytestmark = [pytest.mark.kafka, pytest.mark.java, pytest.mark.clickhouse]

MAX_BYTES = 16_384  # telemetry.max.bytes; pushes of up to 98,304 bytes are buffered before they are refused
METRICS = 2_000  # each with 100 random bytes, which no codec can compress
INTERVAL_MS = 1_000


def test_oversize_push_is_refused_and_the_client_continues(
    jvm: Jvm, kafka: LocalCluster, kafka_admin: Admin, name: str, tmp_path: Path
) -> None:
    kafka_admin.create_topics([name])
    kafka_admin.set_subscription(name, "org.apache.kafka.", INTERVAL_MS)
    config = config_file(tmp_path, telemetry={"max_bytes": MAX_BYTES})
    logged_before = len(jvm.log.read_text())
    with Served(tmp_path, "--upstream", kafka.bootstrap, *config) as served:
        producer = jvm.producer(served.kafka, name, linger_ms="0")
        record = jvm.classes.org.apache.kafka.clients.producer.ProducerRecord(name, jvm.bytes_of(1000))

        def pushes(code: str) -> float:
            producer.send(record).get()  # on the connections that the pushes use
            return served.metrics().get(f"headroom_push_telemetry_total:{code}", 0.0)

        eventually(lambda: pushes("NONE"), lambda count: count >= 1)
        draw = random.Random(1)
        common = jvm.classes.org.apache.kafka.common
        time, settings, lock = common.utils.Time.SYSTEM, common.metrics.MetricConfig(), jvm.classes.java.lang.Object()
        value = common.metrics.stats.Value()
        large = [  # that an application adds to its producer's telemetry (KIP-1076)
            common.metrics.KafkaMetric(lock, common.MetricName(f"large-{n}", "large", "", tags), value, settings, time)
            for n in range(METRICS)
            for tags in ({"text": draw.randbytes(100).hex()},)
        ]
        for metric in large:
            producer.registerMetricForSubscription(metric)
        eventually(lambda: pushes("TELEMETRY_TOO_LARGE"), lambda count: count >= 3)  # it pushes again after each
        for metric in large:
            producer.unregisterMetricFromSubscription(metric)
        accepted = pushes("NONE")
        eventually(lambda: pushes("NONE"), lambda count: count >= accepted + 2)
        producer.close()
    logged = jvm.log.read_text()[logged_before:].splitlines()
    ours = [line for line in logged if "clientId=" not in line or f"clientId={name}" in line]  # others share the JVM
    assert [line for line in ours if "IllegalStateException" in line or "ERROR" in line] == []
