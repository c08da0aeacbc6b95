"""What is recorded beside the meter: brokers' quota sensors, also of brokers that are down or do not distinguish
clients, and topics by their names and whole minutes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import structlog
from structlog.testing import capture_logs

from exporters import self_metrics as catalogue
from exporters.model import RecordKind, SampledTopics, TopicSample, UsageSample
from headroom.config.quotas import JmxConfig, JmxTarget
from headroom.server.quotas.jmx_recorder import JmxScraper
from headroom.server.quotas.topic_usage import TopicUsage
from quota_metrics.jmx.scrape import Agent, ScrapeError, Target
from quota_metrics.jmx.sensors import SensorReading
from quota_metrics.kafka.errors import BrokerUnreachableError
from telemetry.subscriptions.java.hash import uuid_text
from telemetry.wire.topic_bytes import ID_MARK

READING = SensorReading({("Produce", "alice", ""): {"byte-rate": 5.0}})
MANGLED = SensorReading({}, ambiguous=3)


class Brokers:
    """The answers of each broker, in order."""

    def __init__(self, **answers: list[SensorReading | ScrapeError]) -> None:
        self.answers = {int(name.removeprefix("broker_")): given for name, given in answers.items()}
        self.taken: list[tuple[int, float]] = []  # broker and rate
        self.scraper = JmxScraper(
            JmxConfig(
                targets=tuple(JmxTarget(broker_id=n, agent=Agent.JOLOKIA, url="http://h/") for n in self.answers)
            ),
            "c",
            now_ms=lambda: 7,
            take=self._take,
            clients=lambda: {("alice", "app")},
            read=self._read,
        )

    def _read(
        self, target: Target, *, timeout_s: float, max_bytes: int, clients: set[tuple[str, str]]
    ) -> SensorReading:
        assert (timeout_s, max_bytes, clients) == (3.0, 1 << 25, {("alice", "app")})
        answer = self.answers[target.broker_id].pop(0)
        if isinstance(answer, ScrapeError):
            raise answer
        return answer

    def _take(self, rows: Sequence[UsageSample]) -> None:
        self.taken += [(row.broker_id, row.rate) for row in rows]

    def steps(self, count: int) -> list[str]:
        """Runs the steps and returns the log lines."""
        structlog.reset_defaults()
        with capture_logs() as logged:
            for _ in range(count):
                asyncio.run(self.scraper.step())
        return [f"{line['log_level']} {line['broker_id']}" for line in logged]


def test_broker_outage_is_logged_twice_and_does_not_affect_others() -> None:
    down = ScrapeError("refused")
    brokers = Brokers(broker_1=[READING, down, down, READING], broker_2=[READING] * 4)
    assert brokers.steps(4) == ["warning 1", "info 1"]
    assert sorted(brokers.taken) == [(1, 5.0)] * 2 + [(2, 5.0)] * 4
    assert brokers.scraper.failures == 2


def test_ambiguous_names_are_logged_once_and_counted_each_time() -> None:
    brokers = Brokers(broker_1=[MANGLED] * 3)
    assert brokers.steps(3) == ["warning 1"]
    assert brokers.scraper.left_out == {"ambiguous": 9}
    assert brokers.scraper.readings()[catalogue.JMX_WITHOUT_SENSORS] == 0


def test_broker_without_sensors_is_said_once() -> None:
    nothing = SensorReading({})
    brokers = Brokers(broker_1=[nothing, nothing, READING, nothing], broker_2=[READING] * 4)
    assert brokers.steps(4) == ["warning 1"]
    assert brokers.scraper.readings()[catalogue.JMX_WITHOUT_SENSORS] == 1
    assert sorted(brokers.taken) == [(1, 5.0)] + [(2, 5.0)] * 4


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
