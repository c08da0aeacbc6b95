"""Quotas in the gateway: rules, the cluster's facts, limits of clients and addresses, what is measured and written."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial

import structlog

from exporters import self_metrics as catalogue
from exporters.clickhouse.client import ClickHouse
from exporters.model import QuotaLimit, RecordKind, UsageSample
from exporters.self_metrics import SelfMetric, Values
from exporters.spool.writer import SpoolWriter
from headroom.clock import now_ms
from headroom.config.settings import ServeConfig
from headroom.daemon_thread import in_daemon_thread
from headroom.errors import ServeError
from headroom.server.cluster.facts_in_force import FactsInForce
from headroom.server.periodic import PeriodicTask, QuotaRecorder, write_facts
from headroom.server.processes.address_quotas import AddressQuotas
from headroom.server.quotas.jmx_recorder import JmxScraper
from headroom.server.quotas.other_gateways import OtherGateways
from headroom.server.quotas.topic_usage import TopicUsage
from quota_metrics.cluster.reading import read_facts
from quota_metrics.config.entities import CLIENT_ID, USER, Rules, stored_rules
from quota_metrics.config.timeline import LimitHistory, unrecorded
from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.errors import UnsupportedError
from quota_metrics.measure.quota_in_force import CallbackError, QuotaCallback, QuotasInForce
from quota_metrics.measure.usage_meter import UsageMeter

log = structlog.get_logger(__name__)

_FACTS_EVERY_MS = 60_000
_TIMEOUT_S = 10.0  # short, because the start waits for it
_LATEST = """
SELECT user, client_id, ip, quota_key, toUnixTimestamp64Milli(max(valid_from)) AS since_ms,
       argMax(tuple(value), valid_from).1 AS newest
FROM quota_limits FINAL
WHERE cluster = {cluster:String}
GROUP BY user, client_id, ip, quota_key
"""


class QuotaState:
    """Built from the configuration. Raises ServeError when the callback cannot be used. Rows go to `spool`, and `stack`
    writes the last ones. `store`: for what earlier runs and other gateways wrote."""

    def __init__(
        self,
        config: ServeConfig,
        cluster: str,
        admin: KafkaAdmin,
        spool: SpoolWriter,
        store: ClickHouse,
        stack: AsyncExitStack,
    ) -> None:
        quotas, gateway_id = config.quotas, config.gateway.id
        try:
            self._callback = QuotaCallback.load(quotas.callback) if quotas.callback else None
        except CallbackError as exc:
            raise ServeError(str(exc)) from exc
        self._admin = admin
        self._rules: Rules = {}
        self._is_unsupported = False  # the cluster has no quotas that can be read
        self._logged_faults = 0  # of the callback
        self.facts = FactsInForce(quotas, cluster, partial(read_facts, admin), partial(write_facts, spool))
        self._in_force = QuotasInForce(self._callback, self.facts.callback_at)
        self.addresses = AddressQuotas(cluster, gateway_id, self.facts.window_at, config.gateway.ip_quotas)
        self.meter = UsageMeter(
            cluster,
            gateway_id=gateway_id,
            quota_of=self._in_force.of_client,
            window_at=self.facts.window_at,
            interval_ms=quotas.usage_interval_ms,
            max_clients=quotas.max_clients,
        )
        self._history: LimitHistory | None = None  # None: the store's was not read yet
        self._store = replace(store, timeout_s=_TIMEOUT_S)
        self._recorder = QuotaRecorder(
            spool=spool,
            meter=self.meter,
            read_changes=self._read_changes,
            now_ms=now_ms,
            further=self.addresses.samples,
        )
        self.topics = TopicUsage(
            cluster, gateway_id, quotas.topics.sample, admin.topic_names, self._recorder.write_rows
        )
        self.facts_task = PeriodicTask("cluster facts", _FACTS_EVERY_MS, self._read_facts)
        self.first_tasks = [  # before clients are accepted
            self.facts_task,
            PeriodicTask("quotas", quotas.refresh_ms, self._recorder.write_limits),
            PeriodicTask("usage", quotas.usage_interval_ms, self._recorder.write_usage, on_the_clock=True),
        ]
        if config.upstream:
            self.first_tasks.append(OtherGateways(self.meter, store, gateway_id).task())
        stack.push_async_callback(self._recorder.write_usage)
        stack.push_async_callback(self.topics.write)
        self.tasks = [*self.first_tasks, *self.topics.tasks()]
        self._scraper: JmxScraper | None = None
        if quotas.jmx.targets:
            self._scraper = JmxScraper(quotas.jmx, cluster, take=self._take_of_brokers, clients=self._clients)
            self.tasks.append(PeriodicTask("jmx", quotas.jmx.interval_ms, self._scraper.step))

    def readings(self) -> dict[SelfMetric, Values]:
        values = self.facts.readings() | {
            catalogue.ADDRESSES_LEFT_OUT: self.addresses.left_out,
            catalogue.MUTATIONS_UNKNOWN: self.meter.topics.unknown,
            catalogue.USAGE_CLIENTS: len(self.meter),
            catalogue.USAGE_LEFT_OUT: self.meter.left_out.total,
            catalogue.USAGE_LONG_NAMES: self.meter.long_names.total,
            catalogue.USAGE_ROWS_LOST: self._recorder.rows_lost,
        }
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
            self.meter.topics.follow(self.facts.facts.partitions)
            await self.addresses.follow_facts(self.facts.facts)

    async def _read_changes(self) -> list[QuotaLimit]:
        """Puts the cluster's quotas in force, and returns the rows to record. Raises ClusterError, ConnectionError."""
        try:
            rules = stored_rules(await self._admin.describe_client_quotas())
        except UnsupportedError as exc:  # what the store has of an earlier cluster stays
            if not self._is_unsupported:
                log.warning("the cluster has no quotas that can be read: limits and levels are unknown", error=str(exc))
            self._is_unsupported = True
            return []
        self._rules = rules
        self._in_force.configure(rules)
        self.facts.follow_rules(rules)
        self.addresses.follow_rules(rules)
        stored = partial(in_daemon_thread, partial(stored_limits, self._store, self.meter.cluster))
        if self._history is None:
            try:
                self._history = LimitHistory(self.meter.cluster, await stored())
            except ConnectionError as exc:
                raise ConnectionError(f"cannot read the stored limits: {exc}") from exc
        changes = self._history.changes(rules, now_ms())
        if not changes:
            return changes
        try:
            return unrecorded(changes, await stored())
        except ConnectionError:
            return changes  # a row that repeats another gateway's is harmless: quota_changes ignores it

    def _take_of_brokers(self, rows: Sequence[UsageSample]) -> None:
        self._recorder.write_rows(RecordKind.USAGE, [self._in_force.of_sensor(row) for row in rows])

    def _clients(self) -> set[tuple[str, str]]:
        """Users and client ids whose sensors a broker may have."""
        configured = ({kind: name or "" for kind, name in entity} for entity in self._rules)
        return self.meter.clients() | {(names.get(USER, ""), names.get(CLIENT_ID, "")) for names in configured}


def stored_limits(clickhouse: ClickHouse, cluster: str) -> list[QuotaLimit]:
    """The newest row of each quota, removed ones with value None. Raises StoreError."""
    return [
        QuotaLimit(cluster, row["user"], row["client_id"], row["ip"], row["quota_key"], row["since_ms"], row["newest"])
        for row in clickhouse.rows(_LATEST, {"cluster": cluster})
    ]
