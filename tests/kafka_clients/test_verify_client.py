"""`headroom verify-client` checks real clients: Java's producer and librdkafka's pass each rule."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from headroom.demo.jvm import Jvm
from tests.kafka_clients.conftest import INTERVAL_MS, Verification, assert_passed


@pytest.fixture
def verification(tmp_path: Path) -> Iterator[Verification]:
    running = Verification(tmp_path)
    yield running
    running.close()


@pytest.mark.release
@pytest.mark.kafka
def test_librdkafka_passes(verification: Verification) -> None:
    producer = Producer({"bootstrap.servers": verification.bootstrap, "client.id": "judged", "log_level": 2})
    verification.wait_until_complete()
    producer.close()
    assert_passed(verification)


@pytest.mark.java
def test_java_passes(verification: Verification, jvm: Jvm) -> None:
    # Java's clients send a terminating push only while another request is in flight: they ask for metadata often.
    producer = jvm.producer(verification.bootstrap, "judged", metadata_max_age_ms="100")
    verification.wait_until_complete()
    time.sleep(2 * INTERVAL_MS / 1000)
    producer.close()
    assert_passed(verification)
