"""SCRAM users of brokers that have no API for them. With a broker: tests/headroom/cli/quotas/test_as_code_real.py."""

from __future__ import annotations

import asyncio

import pytest

from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.errors import UnsupportedError
from quota_metrics.kafka.scram_users import read_scram_users


def test_brokers_before_kafka_2_7_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unsupported(*_: object, **__: object) -> None:
        raise UnsupportedError("no common version")

    monkeypatch.setattr(KafkaAdmin, "send", unsupported)
    with pytest.raises(UnsupportedError, match=r"no API for SCRAM users, which Kafka 2\.7"):
        asyncio.run(read_scram_users(KafkaAdmin([("127.0.0.1", 1)])))
