"""Brokers that are down, recover, or expose metric names that do not distinguish clients."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog
from structlog.testing import capture_logs

from exporters import self_metrics as catalogue
from exporters.model import UsageSample
from headroom.config.quotas import JmxConfig, JmxTarget
from headroom.server.quotas.jmx_recorder import JmxScraper
from quota_metrics.jmx.scrape import Agent, ScrapeError, Target
from quota_metrics.jmx.sensors import SensorReading

READING = SensorReading({("Produce", "alice", ""): {"byte-rate": 5.0}})
MANGLED = READING._replace(ambiguous=3)


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


def test_broker_without_sensors_is_said_once() -> None:
    nothing = SensorReading({})
    brokers = Brokers(broker_1=[nothing, nothing, READING, nothing], broker_2=[READING] * 4)
    assert brokers.steps(4) == ["warning 1"]
    assert brokers.scraper.readings()[catalogue.JMX_WITHOUT_SENSORS] == 1
    assert sorted(brokers.taken) == [(1, 5.0)] + [(2, 5.0)] * 4


def test_broker_of_which_only_ambiguous_names_are_known_is_not_one_without_sensors() -> None:
    brokers = Brokers(broker_1=[SensorReading({}, ambiguous=1)])
    assert brokers.steps(1) == ["warning 1"]
    assert brokers.scraper.readings()[catalogue.JMX_WITHOUT_SENSORS] == 0
