"""Rows of topic_samples in `headroom serve`: names of topics by their ids, whole minutes, what is lost is counted."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from exporters.model import RecordKind, SampledTopics, TopicSample
from exporters.spool.reader import SpoolReader
from exporters.spool.records import USAGE_WRITER, decode_rows
from exporters.spool.writer import SpoolFull, SpoolWriter
from headroom.server.quotas.topic_usage import TopicUsage
from quota_metrics.kafka.errors import BrokerUnreachableError
from telemetry.subscriptions.java.hash import uuid_text
from telemetry.wire.topic_bytes import ID_MARK

MINUTE_MS = 60_000
ORDERS, OTHER = b"\x01" * 16, b"\x02" * 16


class Service:
    """The component over a spool, with a cluster that knows one name."""

    def __init__(self, directory: Path, max_bytes: int = 1 << 24) -> None:
        self.directory = directory
        self.now_ms = 10 * MINUTE_MS + 5_000
        self.asked: list[list[bytes]] = []
        self.is_away = False
        self.spool = SpoolWriter(directory, USAGE_WRITER, segment_bytes=1 << 20, max_bytes=max_bytes)
        self.topics = TopicUsage("c", "gw", 0.1, self._names_of, self.spool, lambda: self.now_ms)

    async def _names_of(self, topic_ids: Sequence[bytes]) -> Mapping[bytes, str]:
        self.asked.append(list(topic_ids))
        if self.is_away:
            raise BrokerUnreachableError("gone")
        return {ORDERS: "orders"}

    def saw(self, topic: str, nbytes: int, client_id: str = "app") -> None:
        self.topics.meter.observe(SampledTopics("alice", client_id, "alice", "in", {topic: nbytes}))

    def write(self, now_ms: int) -> None:
        self.now_ms = now_ms
        asyncio.run(self.topics.write())

    def stored(self) -> list[TopicSample]:
        reader = SpoolReader(self.directory)
        batch = reader.next_batch(100, 1 << 20)
        return [row for _, body in batch.records for row in decode_rows(RecordKind.TOPICS, body)] if batch else []


def test_rows_end_with_the_minute_and_have_names(tmp_path: Path) -> None:
    service = Service(tmp_path)
    service.saw(ID_MARK + ORDERS.hex(), 100)
    service.saw("orders", 20)  # by a version that names it
    service.saw(ID_MARK + OTHER.hex(), 3)
    service.write(11 * MINUTE_MS + 2)
    service.saw(ID_MARK + ORDERS.hex(), 7)
    service.write(11 * MINUTE_MS + 30_000)  # it stops
    first, last = (11 * MINUTE_MS, 55_000), (11 * MINUTE_MS + 30_000, 30_000)
    assert service.stored() == [
        TopicSample("c", *first, "alice", "app", "orders", "in", 120, 2, 0.1, "gw"),
        TopicSample("c", *first, "alice", "app", uuid_text(OTHER), "in", 3, 1, 0.1, "gw"),
        TopicSample("c", *last, "alice", "app", "orders", "in", 7, 1, 0.1, "gw"),
    ]
    assert service.asked == [[ORDERS, OTHER]]  # a name is asked for once


def test_without_an_answer_topics_are_written_by_their_ids(tmp_path: Path) -> None:
    service = Service(tmp_path)
    service.is_away = True
    service.saw(ID_MARK + ORDERS.hex(), 100)
    service.write(11 * MINUTE_MS)
    service.is_away = False
    service.saw(ID_MARK + ORDERS.hex(), 100)
    service.write(12 * MINUTE_MS)
    assert [row.topic for row in service.stored()] == [uuid_text(ORDERS), "orders"]


def test_rows_that_find_no_room_are_counted(tmp_path: Path) -> None:
    service = Service(tmp_path, max_bytes=300)
    for n in range(5):
        service.saw("orders", 100, f"app-{n}" + "x" * 200)
    with pytest.raises(SpoolFull):
        service.write(11 * MINUTE_MS)
    assert service.topics.rows_lost == 5
    assert service.stored() == []
