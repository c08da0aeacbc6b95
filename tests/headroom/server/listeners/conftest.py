"""Brokers that start in no time and need no Java."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from tests.kit.serving import PATIENCE_S


@pytest.fixture
def mock_brokers() -> Iterator[str]:
    """The bootstrap addresses of three brokers, which are threads of this client."""
    owner = Producer({"test.mock.num.brokers": "3", "bootstrap.servers": "none:1", "log_level": 0})
    brokers = owner.list_topics(timeout=PATIENCE_S).brokers.values()
    yield ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
    owner.flush(0)
