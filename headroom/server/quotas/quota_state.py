"""The state of quotas in the gateway: rules, the cluster's facts, limits of clients and addresses, JMX sensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial

import structlog

from exporters import self_metrics as catalogue
from exporters.model import StoredFacts, UsageSample
from exporters.self_metrics import SelfMetric, Values
from headroom.clock import now_ms
from headroom.config.settings import GatewayConfig, QuotaConfig
from headroom.errors import ServeError
from headroom.server.cluster.facts_in_force import FactsInForce
from headroom.server.periodic import PeriodicTask, QuotaRecorder
from headroom.server.processes.address_quotas import AddressQuotas
from headroom.server.quotas.jmx_scraper import JmxScraper
from quota_metrics.cluster.reading import read_facts
from quota_metrics.config.entities import CLIENT_ID, USER, Rules
from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.measure.quota_callback import CallbackError, QuotaCallback
from quota_metrics.measure.quota_in_force import QuotasInForce
from quota_metrics.measure.topic_partitions import TopicPartitions
from quota_metrics.measure.usage_meter import UsageMeter

log = structlog.get_logger(__name__)

_FACTS_EVERY_MS = 60_000


class QuotaState:
    """Built from the configuration. Raises ServeError when the callback cannot be used."""

    def __init__(
        self,
        config: QuotaConfig,
        name: str,
        admin: KafkaAdmin,
        store: Callable[[Sequence[StoredFacts]], None],
        stack: AsyncExitStack,
        gateway: GatewayConfig,
    ) -> None:
        """`store` gets rows of cluster_facts."""
        self._config = config
        self._name = name
        self._stack = stack
        try:
            self._callback = QuotaCallback.load(config.callback) if config.callback else None
        except CallbackError as exc:
            raise ServeError(str(exc)) from exc
        self.facts = FactsInForce(config, name, partial(read_facts, admin), store)
        self.in_force = QuotasInForce(self._callback, self.facts.callback_at)
        self.addresses = AddressQuotas(name, gateway.id, self.facts.window_at, gateway.ip_quotas)
        self.facts_task = PeriodicTask("cluster facts", _FACTS_EVERY_MS, self._read_facts)
        self.topics = TopicPartitions()
        self._rules: Rules = {}
        self._scraper: JmxScraper | None = None
        self._logged_faults = 0  # of the callback

    def configure(self, rules: Rules) -> None:
        """The cluster's quotas."""
        self._rules = rules
        self.in_force.configure(rules)
        self.facts.follow_rules(rules)
        self.addresses.follow_rules(rules)

    def jmx_tasks(self, recorder: QuotaRecorder, meter: UsageMeter) -> list[PeriodicTask]:
        """Writes the brokers' rows through the recorder."""
        if not self._config.jmx.targets:
            return []
        self._scraper = self._jmx(recorder, meter)
        return [PeriodicTask("jmx", self._config.jmx.interval_ms, self._scraper.step)]

    def readings(self) -> dict[SelfMetric, Values]:
        values = self.facts.readings()
        values[catalogue.ADDRESSES_LEFT_OUT] = self.addresses.left_out
        values[catalogue.MUTATIONS_UNKNOWN] = self.topics.unknown
        if self._scraper is not None:
            values |= self._scraper.readings()
        if self._callback is not None:
            values[catalogue.CALLBACK_FAULTS] = self._callback.faults
            if self._callback.faults > self._logged_faults:
                log.warning("a quota is not known", error=self._callback.last_fault, faults=self._callback.faults)
                self._logged_faults = self._callback.faults
        return values

    async def _read_facts(self) -> None:
        try:
            await self.facts.step()
        finally:  # facts that could not be stored are in force all the same
            self.topics.follow(self.facts.facts.partitions)
            await self.addresses.follow_facts(self.facts.facts)

    def _jmx(self, recorder: QuotaRecorder, meter: UsageMeter) -> JmxScraper:
        def take(rows: Sequence[UsageSample]) -> None:
            recorder.write_rows([self.in_force.of_sensor(row) for row in rows])

        def collect_clients() -> set[tuple[str, str]]:
            named = ({kind: name or "" for kind, name in entity} for entity in self._rules)
            return meter.clients() | {(names.get(USER, ""), names.get(CLIENT_ID, "")) for names in named}

        scraper = JmxScraper(self._config.jmx, self._name, now_ms=now_ms, take=take, clients=collect_clients)
        self._stack.callback(scraper.close)
        return scraper
