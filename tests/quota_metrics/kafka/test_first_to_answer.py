"""KafkaAdmin connects to the first broker that answers: one broker that answers is enough."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from quota_metrics.kafka import admin
from quota_metrics.kafka.admin import Address, first_to_answer
from quota_metrics.kafka.connection import KafkaConnection
from quota_metrics.kafka.errors import BrokerUnreachableError, ClusterError, TimedOutError

SILENT, REFUSES, ANSWERS, SLOW = (("broker", port) for port in range(4))


class Brokers:
    """Connections to brokers whose names state their behaviour."""

    def __init__(self) -> None:
        self.tried: list[Address] = []
        self.cancelled: list[Address] = []

    async def connect(self, address: Address) -> KafkaConnection:
        self.tried.append(address)
        try:
            if address == SILENT:
                await asyncio.Event().wait()
            if address == SLOW:
                await asyncio.sleep(0.2)
            if address == REFUSES:
                raise TimedOutError(f"cannot reach {address}")
        except asyncio.CancelledError:
            self.cancelled.append(address)
            raise
        return cast(KafkaConnection, address)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "_NEXT_BROKER_AFTER_S", 0.02)


@pytest.mark.parametrize(
    "addresses",
    [[ANSWERS], [SILENT] * 3 + [ANSWERS], [REFUSES, SILENT, ANSWERS], [SLOW, SILENT], [SILENT, SLOW, REFUSES]],
)
def test_first_answering_broker_wins_and_others_are_cancelled(addresses: list[Address]) -> None:
    brokers = Brokers()
    address, connection = asyncio.run(first_to_answer(addresses, brokers.connect))
    assert address == cast(Address, connection)
    assert address in (ANSWERS, SLOW)
    assert brokers.cancelled == [broker for broker in brokers.tried if broker == SILENT]


def test_each_broker_has_the_whole_timeout() -> None:
    assert asyncio.run(first_to_answer([SLOW, *[REFUSES] * 40], Brokers().connect))[0] == SLOW


@pytest.mark.parametrize(("count", "error"), [(1, TimedOutError), (2, BrokerUnreachableError)])
def test_no_answering_broker_raises(count: int, error: type[ClusterError]) -> None:
    with pytest.raises(error, match="cannot reach"):
        asyncio.run(first_to_answer([REFUSES] * count, Brokers().connect))
