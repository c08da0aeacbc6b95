"""Quotas in the gateway: the limit in each row of usage, the brokers' JMX sensors, client series on /metrics.

The latter two are optional and cost nothing while they are off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial

from exporters import self_metrics as catalogue
from exporters.model import StoredFacts, UsageSample
from exporters.self_metrics import SelfMetric, Values
from headroom.clock import now_ms
from headroom.config.settings import GatewayConfig, QuotaConfig
from headroom.errors import ServeError
from headroom.server.periodic import PeriodicTask, QuotaRecorder
from headroom.server.processes.address_quotas import AddressQuotas
from headroom.server.quotas.client_quotas import ClientQuotas
from headroom.server.quotas.cluster_quotas import ClusterQuotas, read_partitions
from headroom.server.quotas.facts_in_force import FactsInForce
from headroom.server.quotas.jmx_scraper import JmxScraper
from quota_metrics.cluster.reading import read_facts
from quota_metrics.config.entities import CLIENT_ID, USER, Rules
from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.cluster import Cluster
from quota_metrics.measure.callbacks import CallbackError
from quota_metrics.measure.quota_in_force import QuotasInForce
from quota_metrics.measure.topic_partitions import TopicPartitions
from quota_metrics.measure.usage_meter import UsageMeter

_FACTS_EVERY_MS = 60_000


class QuotaViews:
    """Built from the configuration. Raises ServeError when the callback cannot be used."""

    def __init__(
        self,
        config: QuotaConfig,
        name: str,
        admin: KafkaAdmin,
        cluster: Cluster,
        store: Callable[[Sequence[StoredFacts]], None],
        stack: AsyncExitStack,
        gateway: GatewayConfig,
    ) -> None:
        """`store` gets rows of cluster_facts."""
        self._config = config
        self._name = name
        self._admin = admin
        self._cluster = cluster
        self._stack = stack
        self._quotas = ClusterQuotas(config)
        self.facts = FactsInForce(config, name, partial(read_facts, admin), store)
        self.in_force = QuotasInForce(self._quotas.at if self._quotas.has_callback else None, self.facts.callback_at)
        self.addresses = AddressQuotas(name, gateway.id, self.facts.window_at, gateway.ip_quotas)
        self.topics = TopicPartitions()
        self._rules: Rules = {}
        self._scraper: JmxScraper | None = None
        self._clients = self._on_metrics() if config.metrics.enabled else None

    async def configure(self, rules: Rules) -> None:
        """The cluster's quotas. Raises ClusterError."""
        self._rules = rules
        if self._clients is not None:
            self._quotas.configure(rules)
            if self._quotas.has_callback:
                self._quotas.follow(await read_partitions(self._admin, self._cluster.cluster_id))
        self.in_force.configure(rules)
        self.facts.follow_rules(rules)
        self.addresses.follow_rules(rules)

    def measured(self, rows: Sequence[UsageSample]) -> None:
        """Takes the gateway's latest usage."""
        if self._clients is not None:
            self._clients.measured(rows)

    def periodic_tasks(self) -> list[PeriodicTask]:
        return [PeriodicTask("cluster facts", _FACTS_EVERY_MS, self._read_facts)]

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
        if self._clients is not None:
            values |= self._clients.readings()
        if self._quotas.has_callback:
            values[catalogue.CALLBACK_FAULTS] = self._quotas.faults()
        return values

    async def _read_facts(self) -> None:
        try:
            await self.facts.step()
        finally:  # facts that could not be stored are in force all the same
            self.topics.follow(self.facts.facts.partitions)
            await self.addresses.follow_facts(self.facts.facts)

    def _on_metrics(self) -> ClientQuotas:
        try:
            for node in self._cluster.nodes if self._quotas.has_callback else ():
                self._quotas.open(node.id)
        except CallbackError as exc:
            raise ServeError(str(exc)) from exc
        self._stack.callback(self._quotas.close)
        max_series = self._config.metrics.max_series
        return ClientQuotas(self._name, self._quotas.at, self.facts.window_at, self.facts.thread_capacity, max_series)

    def _jmx(self, recorder: QuotaRecorder, meter: UsageMeter) -> JmxScraper:
        def take(broker_id: int, rows: Sequence[UsageSample]) -> None:
            rows = [self.in_force.of_sensor(row) for row in rows]
            if self._clients is not None:
                self._clients.scraped(broker_id, rows)
            recorder.write_rows(rows)

        def collect_clients() -> set[tuple[str, str]]:
            named = ({kind: name or "" for kind, name in entity} for entity in self._rules)
            return meter.clients() | {(names.get(USER, ""), names.get(CLIENT_ID, "")) for names in named}

        scraper = JmxScraper(self._config.jmx, self._name, now_ms=now_ms, take=take, clients=collect_clients)
        self._stack.callback(scraper.close)
        return scraper
