"""100,000 records of mixed sizes up to 1 MB, through the gateway and directly, by two families: same checksums."""

import hashlib
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from headroom.demo.broker import LocalCluster
from headroom.demo.jvm import Jvm
from tests.kit.kafka.records import values_of
from tests.telemetry.conftest import RunningGateway

pytestmark = [pytest.mark.kafka, pytest.mark.java]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PATIENCE_S = 150.0
RECORDS_PER_RUN = 2_000  # x 5 codecs x 5 modes x 2 families = 100,000 through the gateway
MODES: dict[str, dict[str, str]] = {
    "acks-0": {"acks": "0", "enable.idempotence": "false"},
    "acks-1": {"acks": "1", "enable.idempotence": "false"},
    "acks-all": {"acks": "all", "enable.idempotence": "false"},
    "idempotent": {"acks": "all", "enable.idempotence": "true"},
    "transactional": {"acks": "all", "enable.idempotence": "true"},
}


def digests(values: Iterable[bytes]) -> Counter[bytes]:
    """Records independent of their order."""
    return Counter(hashlib.blake2b(value, digest_size=8).digest() for value in values)


@pytest.fixture(scope="module")
def payloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lines of text: 1 of 1 MB, 5 of 100 kB, 44 of 5 kB, 450 of 200 bytes."""
    source = random.Random(7)
    sizes = [1_000_000] + [100_000] * 5 + [5_000] * 44 + [200] * 450
    lines = [source.randbytes(size // 2).hex() for size in sizes]
    path = tmp_path_factory.mktemp("payloads") / "lines.txt"
    path.write_text("\n".join(lines))
    return path


def produce_by_java(jvm: Jvm, bootstrap: str, topic: str, mode: str, codec: str, payloads: Path) -> None:
    """Kafka's own ProducerPerformance, which chooses its lines with a fixed seed."""
    arguments = ["--topic", topic, "--num-records", str(RECORDS_PER_RUN), "--throughput", "-1"]
    arguments += ["--payload-file", str(payloads)]
    if mode == "transactional":
        arguments += ["--transactional-id", f"{topic}-{codec}"]
    properties = {"bootstrap.servers": bootstrap, "compression.type": codec, "client.id": f"java-{mode}-{codec}"}
    arguments += ["--command-property", *(f"{k}={v}" for k, v in (properties | MODES[mode]).items())]
    jvm.classes.org.apache.kafka.tools.ProducerPerformance.main(jvm.strings(arguments))


def produce_by_librdkafka(bootstrap: str, topic: str, mode: str, codec: str, lines: list[bytes]) -> Counter[bytes]:
    config: dict[str, Any] = {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 5}
    config["message.max.bytes"] = 1_048_588  # the broker's default; librdkafka's own leaves no room for 1 MB
    transactional = mode == "transactional"
    if transactional:
        config["transactional.id"] = f"{topic}-{codec}"
    producer = Producer(config | MODES[mode] | {"client.id": f"librdkafka-{mode}-{codec}"})
    chosen = [*random.Random(f"{mode}-{codec}").choices(lines, k=RECORDS_PER_RUN - 1), max(lines, key=len)]
    if transactional:
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
    for value in chosen:
        producer.produce(topic, value)
    if transactional:
        producer.commit_transaction(PATIENCE_S)
    assert producer.flush(PATIENCE_S) == 0
    return digests(chosen)


def consumed(bootstrap: str, topic: str, expected: int) -> Counter[bytes]:
    """All committed records of a topic, by librdkafka."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{topic}-{bootstrap}",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.message.max.bytes": 2_000_000,
        }
    )
    consumer.subscribe([topic])
    content: Counter[bytes] = Counter()
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        messages = consumer.consume(500, 0.5)
        content += digests(values_of(messages))
        if any(message.error() for message in messages) and content.total() >= expected:  # the end of the partition
            break
    consumer.close()
    return content


@pytest.mark.parametrize("family", ["java", pytest.param("librdkafka", marks=pytest.mark.release)])
def test_producer_checksums_match_direct_connection(
    family: str, jvm: Jvm, kafka: LocalCluster, gateway: RunningGateway, new_topic: Callable[[], str], payloads: Path
) -> None:
    lines = payloads.read_bytes().split(b"\n")
    through, direct = new_topic(), new_topic()
    for mode in MODES:
        for codec in CODECS:
            for bootstrap, topic in ((gateway.bootstrap, through), (kafka.bootstrap, direct)):
                if family == "java":
                    produce_by_java(jvm, bootstrap, topic, mode, codec, payloads)
                else:
                    produce_by_librdkafka(bootstrap, topic, mode, codec, lines)
    total = len(MODES) * len(CODECS) * RECORDS_PER_RUN
    sent = consumed(kafka.bootstrap, direct, total)
    assert sent.total() == total
    assert consumed(kafka.bootstrap, through, total) == sent
    assert consumed(gateway.bootstrap, through, total) == sent
