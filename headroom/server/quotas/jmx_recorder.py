"""Reads the brokers' quota sensors periodically: rows of usage with source 'jmx'.

A failing broker is logged when it begins and stops failing, one without sensors once; nothing else is affected.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import structlog

from exporters import self_metrics as catalogue
from exporters.model import UsageSample
from exporters.self_metrics import SelfMetric, Values
from headroom.clock import now_ms
from headroom.config.quotas import JmxConfig
from headroom.daemon_thread import in_daemon_thread
from quota_metrics.jmx.scrape import ScrapeError, Target, scrape
from quota_metrics.jmx.sensors import SensorReading, usage_samples

log = structlog.get_logger(__name__)

_MOST_AT_ONCE = 4


class JmxScraper:
    """Reads all targets in parallel. `step` is for a PeriodicTask."""

    def __init__(
        self,
        config: JmxConfig,
        cluster: str,
        *,
        take: Callable[[Sequence[UsageSample]], None],
        clients: Callable[[], set[tuple[str, str]]],
        now_ms: Callable[[], int] = now_ms,
        read: Callable[..., SensorReading] = scrape,
    ) -> None:
        """`take` gets a broker's rows, and raises OSError; `clients` returns measured users and client-ids."""
        self.failures = 0
        self.left_out: Counter[str] = Counter()
        self._config = config
        self._cluster = cluster
        self._now_ms = now_ms
        self._take = take
        self._clients = clients
        self._blocking_read = read
        self._targets = [Target(target.broker_id, target.agent, target.url) for target in config.targets]
        self._failing: set[Target] = set()
        self._without_sensors: set[Target] = set()
        self._warned: set[tuple[Target, str]] = set()
        self._calls = asyncio.Semaphore(_MOST_AT_ONCE)

    async def step(self) -> None:
        """Reads all targets once. Raises OSError when the rows cannot be written."""
        await asyncio.gather(*map(self._read, self._targets))

    def readings(self) -> dict[SelfMetric, Values]:
        return {
            catalogue.JMX_FAILURES: self.failures,
            catalogue.JMX_LEFT_OUT: dict(self.left_out),
            catalogue.JMX_WITHOUT_SENSORS: len(self._without_sensors),
        }

    async def _read(self, target: Target) -> None:
        read = partial(
            self._blocking_read,
            target,
            timeout_s=self._config.timeout_ms / 1000,
            max_bytes=self._config.max_response_bytes,
            clients=self._clients(),
        )
        try:
            async with self._calls:
                reading = await in_daemon_thread(read)
        except ScrapeError as exc:
            self.failures += 1
            if target not in self._failing:
                log.warning("cannot read a broker's quota sensors", broker_id=target.broker_id, error=str(exc))
            self._failing.add(target)
            return
        if target in self._failing:
            log.info("a broker's quota sensors are readable again", broker_id=target.broker_id)
        self._failing.discard(target)
        if any(reading):
            self._without_sensors.discard(target)
        else:
            self._without_sensors.add(target)
            self._warn_once(
                target,
                "this broker answers without a quota sensor that Headroom knows, which reads as no usage: no client"
                " has used it for an hour, or its exporter leaves them out or names them in another way (docs/jmx.md)",
            )
        for reason in ("ambiguous", "malformed", "left_out"):
            if getattr(reading, reason):
                self.left_out[reason] += getattr(reading, reason)
        if reading.ambiguous:
            self._warn_once(
                target,
                "this broker's JMX exporter builds metric names from client names, and some of them are ambiguous:"
                " add the rules of deploy/jmx/kafka-quotas.yml before its own",
                values=reading.ambiguous,
            )
        self._take(usage_samples(reading.values.items(), self._cluster, target.broker_id, self._now_ms()))

    def _warn_once(self, target: Target, text: str, **values: int) -> None:
        if (target, text) not in self._warned:
            self._warned.add((target, text))
            log.warning(text, broker_id=target.broker_id, **values)
