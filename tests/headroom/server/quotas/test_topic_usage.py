"""Rows of topic_samples in `headroom serve`: names of topics by their ids, whole minutes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from exporters.model import RecordKind, SampledTopics, TopicSample
from headroom.server.quotas.topic_usage import TopicUsage
from quota_metrics.kafka.errors import BrokerUnreachableError
from telemetry.subscriptions.java.hash import uuid_text
from telemetry.wire.topic_bytes import ID_MARK

MINUTE_MS = 60_000
ORDERS, OTHER = b"\x01" * 16, b"\x02" * 16


class Service:
    """The component, with a cluster that knows one name."""

    def __init__(self) -> None:
        self.now_ms = 10 * MINUTE_MS + 5_000
        self.asked: list[list[bytes]] = []
        self.is_away = False
        self.stored: list[TopicSample] = []
        self.topics = TopicUsage("c", "gw", 0.1, self._names_of, self._write_rows, lambda: self.now_ms)

    def _write_rows(self, kind: RecordKind, rows: Sequence[TopicSample]) -> None:
        assert kind is RecordKind.TOPICS
        self.stored += rows

    async def _names_of(self, topic_ids: Sequence[bytes]) -> Mapping[bytes, str]:
        self.asked.append(list(topic_ids))
        if self.is_away:
            raise BrokerUnreachableError("gone")
        return {ORDERS: "orders"}

    def saw(self, topic: str, nbytes: int) -> None:
        self.topics.meter.observe(SampledTopics("alice", "app", "alice", "in", {topic: nbytes}))

    def write(self, now_ms: int) -> None:
        self.now_ms = now_ms
        asyncio.run(self.topics.write())


def test_rows_end_with_the_minute_and_have_names() -> None:
    service = Service()
    service.saw(ID_MARK + ORDERS.hex(), 100)
    service.saw("orders", 20)  # by a version that names it
    service.saw(ID_MARK + OTHER.hex(), 3)
    service.write(11 * MINUTE_MS + 2)
    service.saw(ID_MARK + ORDERS.hex(), 7)
    service.write(11 * MINUTE_MS + 30_000)  # it stops
    first, last = (11 * MINUTE_MS, 55_000), (11 * MINUTE_MS + 30_000, 30_000)
    assert service.stored == [
        TopicSample("c", *first, "alice", "app", "orders", "in", 120, 2, 0.1, "gw"),
        TopicSample("c", *first, "alice", "app", uuid_text(OTHER), "in", 3, 1, 0.1, "gw"),
        TopicSample("c", *last, "alice", "app", "orders", "in", 7, 1, 0.1, "gw"),
    ]
    assert service.asked == [[ORDERS, OTHER]]  # a name is asked for once


def test_without_an_answer_topics_are_written_by_their_ids() -> None:
    service = Service()
    service.is_away = True
    service.saw(ID_MARK + ORDERS.hex(), 100)
    service.write(11 * MINUTE_MS)
    service.is_away = False
    service.saw(ID_MARK + ORDERS.hex(), 100)
    service.write(12 * MINUTE_MS)
    assert [row.topic for row in service.stored] == [uuid_text(ORDERS), "orders"]
