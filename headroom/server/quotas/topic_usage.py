"""Writes what was read of sampled frames to the spool, each minute, with the names of topics.

From Produce 13 and Fetch 13 on the wire has ids of topics. The cluster is asked for the names of those that are not
known yet; a topic whose name it does not tell is written by its id, in Kafka's spelling.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence

import structlog
from cachetools import LRUCache

from exporters.model import RecordKind, TopicSample
from headroom.clock import now_ms
from headroom.server.periodic import PeriodicTask
from quota_metrics.kafka.errors import ClusterError
from quota_metrics.measure.topic_meter import TopicCount, TopicMeter
from telemetry.subscriptions.java.hash import uuid_text
from telemetry.wire.topic_bytes import ID_MARK

log = structlog.get_logger(__name__)

_EVERY_MS = 60_000
_MAX_ASKED = 1_000  # ids in one minute, those of most bytes first
_MAX_KNOWN = 20_000  # names; twice as many as the meter can hold
_ASK_TIMEOUT_S = 5.0

NamesOf = Callable[[Sequence[bytes]], Awaitable[Mapping[bytes, str]]]


class TopicUsage:
    """`meter` gets what is read. `names_of` returns names of topics by their ids, those that it knows."""

    def __init__(
        self,
        cluster: str,
        gateway_id: str,
        sample: float,
        names_of: NamesOf,
        write_rows: Callable[[RecordKind, Sequence[TopicSample]], None],
        now_ms: Callable[[], int] = now_ms,
    ) -> None:
        """`sample`: the share of frames that is read; 0: none."""
        self.meter = TopicMeter()
        self._cluster = cluster
        self._gateway_id = gateway_id
        self._sample = sample
        self._names_of = names_of
        self._write_rows = write_rows
        self._now_ms = now_ms
        self._written_ms = now_ms()  # until when rows are written
        self._is_unanswered = False
        self._names: LRUCache[str, str] = LRUCache(_MAX_KNOWN)  # by id as the wire has it

    def tasks(self) -> list[PeriodicTask]:
        return [PeriodicTask("topics", _EVERY_MS, self.write, on_the_clock=True)] if self._sample else []

    async def write(self) -> None:
        """Writes what was read since the last call. Raises OSError."""
        counts = self.meter.take()
        await self._learn(counts)
        self._write_rows(RecordKind.TOPICS, self._rows(counts))

    def _rows(self, counts: Sequence[TopicCount]) -> list[TopicSample]:
        """Of one client, what was counted under a topic's name and under its id is one row."""
        # Until the whole minute that just passed; until now, when rows of it are written already.
        began_ms, at_ms = self._written_ms, self._now_ms()
        minute_ms = at_ms - at_ms % _EVERY_MS
        self._written_ms = minute_ms if minute_ms > began_ms else at_ms
        nbytes: Counter[tuple[str, str, str, str]] = Counter()
        frames: Counter[tuple[str, str, str, str]] = Counter()
        for count in counts:
            topic = count.topic
            if topic.startswith(ID_MARK):
                topic = self._names.get(topic) or uuid_text(bytes.fromhex(topic[len(ID_MARK) :]))
            names = count.user, count.client_id, topic, count.direction
            nbytes[names] += count.nbytes
            frames[names] += count.frames
        interval_ms = max(self._written_ms - began_ms, 1)
        return [
            TopicSample(
                self._cluster,
                self._written_ms,
                interval_ms,
                *names,
                total,
                frames[names],
                self._sample,
                self._gateway_id,
            )
            for names, total in nbytes.items()
        ]

    async def _learn(self, counts: Sequence[TopicCount]) -> None:
        """Asks for the names that are missing. Without an answer ids are shown."""
        unknown: Counter[str] = Counter()
        for count in counts:
            if count.topic.startswith(ID_MARK) and count.topic not in self._names:
                unknown[count.topic] += count.nbytes
        asked = [bytes.fromhex(topic[len(ID_MARK) :]) for topic, _ in unknown.most_common(_MAX_ASKED)]
        if not asked:
            return
        try:
            async with asyncio.timeout(_ASK_TIMEOUT_S):
                names = await self._names_of(asked)
        except (ClusterError, OSError) as exc:
            if not self._is_unanswered:
                log.warning("cannot read the names of topics, which are shown by their ids", error=str(exc))
            self._is_unanswered = True
            return
        self._is_unanswered = False
        self._names.update((ID_MARK + topic_id.hex(), name) for topic_id, name in names.items())
