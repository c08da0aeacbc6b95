"""`headroom serve --upstream`: opens the gateway of a cluster. `--observe`: the same without a listener.

An observer reads quotas and subscriptions from the cluster and usage from the brokers' JMX, and receives telemetry by
OTLP or gRPC.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial

import structlog

from exporters import self_metrics as catalogue
from exporters.clickhouse.client import ClickHouse
from exporters.spool.writer import PushSpool, SpoolWriter
from headroom.clock import now_ms
from headroom.config.settings import ServeConfig
from headroom.server.cluster.cluster_refresh import BrokerRefresh, TokenOwnersRefresh
from headroom.server.cluster.facts_in_force import FactsInForce
from headroom.server.listeners.network import NetworkService, open_network
from headroom.server.periodic import PeriodicTask, first
from headroom.server.processes.assembly import (
    ClusterView,
    listener_readings,
    loaded_subscriptions,
    new_gateway,
    subscriptions_task,
    telemetry_receiver,
)
from headroom.server.quotas.quota_state import QuotaState
from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.client_metrics import read_subscriptions
from quota_metrics.kafka.cluster import Cluster
from quota_metrics.kafka.errors import UnsupportedError
from telemetry.receiver.telemetry_requests import TelemetryReceiver

log = structlog.get_logger(__name__)


async def open_gateway(
    config: ServeConfig,
    admin: KafkaAdmin,
    cluster: Cluster,
    pushes: PushSpool,
    usage: SpoolWriter,
    store: ClickHouse,
    stack: AsyncExitStack,
) -> NetworkService:
    """`cluster`: as `admin` described it. Raises ServeError. `stack` writes the last usage and closes everything."""
    name = config.cluster or cluster.cluster_id
    receiver = telemetry_receiver(config, pushes)
    quotas = QuotaState(config, name, admin, usage, store, stack)
    if config.observe:
        _log_blind_spots(config)
    subscriptions = subscriptions_task(config, receiver.rules, _subscriptions(config, receiver, admin, quotas.facts))
    for task in (*quotas.first_tasks, subscriptions):
        await first(task)  # listeners open after subscriptions and quotas are known
    brokers = BrokerRefresh(admin, lambda: gateway.all_ports, partial(first, quotas.facts_task))
    tokens = TokenOwnersRefresh(admin)
    gateway = new_gateway(
        config,
        name,
        receiver,
        pushes,
        observe=quotas.meter.exchange,
        view=ClusterView(quotas.addresses.gate, tokens.owners, brokers.soon),
        topics=quotas.topics.meter.observe,
    )
    address, network = await open_network(
        config, gateway, cluster.nodes, stack, quotas.meter.exchange, quotas.addresses, quotas.topics.meter.add
    )
    tasks = [*quotas.tasks, subscriptions, network.task()]
    if not config.observe:
        tasks.append(PeriodicTask("brokers", config.gateway.metadata_refresh_ms, brokers.step))
    stack.callback(brokers.close)  # before the listeners close, so that none is opened meanwhile
    stack.callback(tokens.close)

    async def follow(new: ServeConfig) -> None:
        quotas.facts.follow(new.quotas)
        await first(subscriptions)

    def readings() -> dict[catalogue.SelfMetric, catalogue.Values]:
        return listener_readings(gateway) | quotas.readings()

    return NetworkService(address, tasks, readings, gateway, network, follow, quotas)


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
