"""`headroom serve --upstream`: opens the gateway of a cluster. `--observe`: the same without a listener.

An observer reads quotas and subscriptions from the cluster and usage from the brokers' JMX, and receives telemetry by
OTLP or gRPC.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import structlog

from exporters import self_metrics as catalogue
from exporters.clickhouse.client import ClickHouse
from exporters.model import QuotaLimit
from exporters.spool.writer import PushSpool, SpoolWriter
from headroom.clock import now_ms
from headroom.config.settings import QuotaConfig, ServeConfig
from headroom.daemon_thread import in_daemon_thread
from headroom.server.cluster.cluster_refresh import BrokerRefresh, TokenOwnersRefresh
from headroom.server.cluster.facts_in_force import FactsInForce
from headroom.server.listeners.network import NetworkService, no_network, open_network
from headroom.server.periodic import PeriodicTask, QuotaRecorder, first, write_facts
from headroom.server.processes.assembly import (
    ClusterView,
    listener_readings,
    loaded_subscriptions,
    new_gateway,
    subscriptions_task,
    telemetry_receiver,
)
from headroom.server.quotas.other_gateways import OtherGateways
from headroom.server.quotas.quota_state import QuotaState
from headroom.server.quotas.stored_limits import stored_limits
from headroom.server.quotas.topic_usage import TopicUsage
from quota_metrics.config.entities import Rules, stored_rules
from quota_metrics.config.history import LimitHistory, unrecorded
from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.client_metrics import read_subscriptions
from quota_metrics.kafka.cluster import Cluster
from quota_metrics.kafka.errors import UnsupportedError
from quota_metrics.measure.payers import CountByPayer, PayerCount
from quota_metrics.measure.usage_meter import UsageMeter
from telemetry.receiver.receiver import TelemetryReceiver

log = structlog.get_logger(__name__)

_HISTORY_TIMEOUT_S = 10.0


class Spools(NamedTuple):
    """The writers of the two kinds of records."""

    pushes: PushSpool
    quotas: SpoolWriter


async def open_gateway(
    config: ServeConfig,
    admin: KafkaAdmin,
    cluster: Cluster,
    spools: Spools,
    store: ClickHouse,
    stack: AsyncExitStack,
) -> NetworkService:
    """`cluster`: as `admin` described it. Raises ServeError. `stack` writes the last usage and closes everything."""
    pushes, quotas = spools
    name = config.cluster or cluster.cluster_id
    receiver = telemetry_receiver(config, pushes)
    quota_state = QuotaState(config.quotas, name, admin, partial(write_facts, quotas), stack, config.gateway)
    meter = _usage_meter(config, name, quota_state)
    recorder = _recorder(quotas, meter, _changes(admin, quota_state, _StoredHistory(name, store)), quota_state)
    refresh = _subscriptions(config, receiver, admin, quota_state.facts)
    periodic_tasks = [quota_state.facts_task, *_quota_tasks(config.quotas, recorder)]
    if config.upstream:
        periodic_tasks.append(OtherGateways(meter, store, config.gateway.id).task())
    else:
        _log_blind_spots(config)
    for task in (*periodic_tasks, subscriptions_task(config, receiver.rules, refresh)):
        await first(task)  # listeners open after subscriptions and quotas are known
    stack.push_async_callback(recorder.write_usage)
    topics = TopicUsage(name, config.gateway.id, config.quotas.topics.sample, admin.topic_names, quotas)
    periodic_tasks += [*quota_state.jmx_tasks(recorder, meter), *topics.tasks()]
    stack.push_async_callback(topics.write)
    brokers = BrokerRefresh(admin, lambda: gateway.all_ports, partial(first, quota_state.facts_task))
    tokens = TokenOwnersRefresh(admin, lambda: network.send_token_owners())
    view = ClusterView(quota_state.addresses.gate, tokens.owners, brokers.soon)
    gateway = new_gateway(
        config, name, receiver, pushes, observe=meter.exchange, view=view, topics=topics.meter.observe
    )
    address: tuple[str, int] | None = None
    network = no_network(config, gateway, meter.exchange)  # while listeners open, a client may ask `tokens` already
    if not config.observe:
        address, network = await open_network(
            config, gateway, cluster.nodes, meter.exchange, stack, quota_state.addresses, topics.meter.add
        )
        periodic_tasks.append(PeriodicTask("brokers", config.gateway.metadata_refresh_ms, brokers.step))
    network.send_token_owners()  # to processes that asked before all had started
    stack.callback(brokers.close)  # before the listeners close, so that none is opened meanwhile
    stack.callback(tokens.close)

    async def subscriptions() -> None:
        await refresh()
        network.send_subscriptions()

    followed = subscriptions_task(config, receiver.rules, subscriptions)
    periodic_tasks.append(followed)

    async def follow(new: ServeConfig) -> None:
        quota_state.facts.follow(new.quotas)
        await first(followed)

    def readings() -> dict[catalogue.SelfMetric, catalogue.Values]:
        return listener_readings(gateway) | quota_state.readings() | _usage_readings(meter, recorder, topics)

    service = NetworkService(address, periodic_tasks, readings, gateway, network, follow, quota_state.facts.document)
    return service._replace(left_out=partial(_recent, meter.left_out), long_names=partial(_recent, meter.long_names))


def _changes(
    admin: KafkaAdmin, quota_state: QuotaState, history: _StoredHistory
) -> Callable[[], Awaitable[list[QuotaLimit]]]:
    is_said = False

    async def changes() -> list[QuotaLimit]:
        nonlocal is_said
        try:
            described = stored_rules(await admin.describe_client_quotas())
        except UnsupportedError as exc:  # what the store has of an earlier cluster stays
            if not is_said:
                log.warning("the cluster has no quotas that can be read: limits and levels are unknown", error=str(exc))
            is_said = True
            return []
        quota_state.configure(described)
        return await history.changes(described)

    return changes


def _recorder(
    quotas: SpoolWriter, meter: UsageMeter, changes: Callable[[], Awaitable[list[QuotaLimit]]], quota_state: QuotaState
) -> QuotaRecorder:
    return QuotaRecorder(
        spool=quotas,
        meter=meter,
        read_changes=changes,
        now_ms=now_ms,
        further=quota_state.addresses.samples,
    )


def _quota_tasks(config: QuotaConfig, recorder: QuotaRecorder) -> list[PeriodicTask]:
    return [
        PeriodicTask("quotas", config.refresh_ms, recorder.write_limits),
        PeriodicTask("usage", config.usage_interval_ms, recorder.write_usage, on_the_clock=True),
    ]


def _recent(counted: CountByPayer) -> list[PayerCount]:
    return counted.recent(now_ms())


def _usage_meter(config: ServeConfig, cluster: str, quota_state: QuotaState) -> UsageMeter:
    return UsageMeter(
        cluster,
        gateway_id=config.gateway.id,
        quota_of=quota_state.in_force.of_client,
        window_at=quota_state.facts.window_at,
        interval_ms=config.quotas.usage_interval_ms,
        max_clients=config.quotas.max_clients,
        topics=quota_state.topics,
    )


def _usage_readings(
    meter: UsageMeter, recorder: QuotaRecorder, topics: TopicUsage
) -> dict[catalogue.SelfMetric, catalogue.Values]:
    return {
        catalogue.USAGE_CLIENTS: len(meter),
        catalogue.USAGE_LEFT_OUT: meter.left_out.total,
        catalogue.USAGE_LONG_NAMES: meter.long_names.total,
        catalogue.USAGE_ROWS_LOST: recorder.usage_rows_lost + topics.rows_lost,
    }


def _log_blind_spots(config: ServeConfig) -> None:
    """Warns of what an observer cannot see, and of sources that are not configured."""
    log.info(
        "observing the cluster: throttle times of single clients and connections, and muted clients, are not visible"
    )
    if not config.quotas.jmx.targets:
        log.warning("there is no usage: quotas.jmx.targets is empty")
    if not (config.otlp.grpc or config.otlp.http or config.grpc.listen):
        log.warning("there is no client telemetry: neither otlp.grpc, otlp.http nor grpc.listen is set")


def _subscriptions(
    config: ServeConfig, receiver: TelemetryReceiver, admin: KafkaAdmin, facts: FactsInForce
) -> Callable[[], Awaitable[None]]:
    """Refreshes the rules from the cluster's resources, or from the operator's file instead; and the largest push: the
    smaller of the brokers' telemetry.max.bytes and the setting."""
    rules = receiver.rules
    file = loaded_subscriptions(config.subscriptions, rules) if config.subscriptions else None

    async def refresh() -> None:
        allowed = facts.facts.telemetry_max_bytes
        receiver.telemetry_max_bytes = min(config.telemetry.max_bytes, allowed or config.telemetry.max_bytes)
        if file:
            file.follow()
            return
        try:
            subscriptions = await read_subscriptions(admin)
        except UnsupportedError:  # brokers before 3.7 have none; the cluster's facts say so once
            subscriptions = {}
        rules.replace_all(subscriptions, now_ms())

    return refresh


class _StoredHistory:
    """Continues the history of limits in the store; writes nothing before the store was read."""

    def __init__(self, cluster: str, store: ClickHouse) -> None:
        self._cluster = cluster
        self._store = replace(store, timeout_s=_HISTORY_TIMEOUT_S)  # short, because the start waits for it
        self._history: LimitHistory | None = None

    async def changes(self, described: Rules) -> list[QuotaLimit]:
        """The rows to record. Raises ConnectionError while the history cannot be read."""
        if self._history is None:
            try:
                self._history = LimitHistory(self._cluster, await self._stored())
            except ConnectionError as exc:
                raise ConnectionError(f"cannot read the stored limits: {exc}") from exc
        changes = self._history.changes(described, now_ms())
        if not changes:
            return changes
        try:
            return unrecorded(changes, await self._stored())
        except ConnectionError:
            return changes  # a row that repeats another gateway's is harmless: quota_changes ignores it

    async def _stored(self) -> list[QuotaLimit]:
        return await in_daemon_thread(partial(stored_limits, self._store, self._cluster))
