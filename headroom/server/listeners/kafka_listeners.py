"""Opens the Kafka listeners of `headroom serve`, with further network processes: of a gateway (`--upstream`), or of a
sink that only takes telemetry. `--observe` is a gateway without a listener.

An observer reads quotas and subscriptions from the cluster and usage from the brokers' JMX, and receives telemetry by
OTLP or gRPC. A sink is its own cluster, named by --cluster or by a Kafka Uuid that is generated once and stored in the
data directory.
"""

import asyncio
import re
import uuid
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import structlog

from exporters.clickhouse.client import ClickHouse
from exporters.self_metrics import SelfMetric, Values
from exporters.spool.writer import PushSpool, SpoolWriter
from headroom.clock import now_ms
from headroom.config.settings import Address, ServeConfig
from headroom.errors import ServeError
from headroom.server.addresses import listening
from headroom.server.cluster.cluster_metadata import BrokerRefresh, TokenOwnersRefresh
from headroom.server.cluster.facts_in_force import FactsInForce
from headroom.server.metrics import Readings
from headroom.server.periodic import PeriodicTask, run_once
from headroom.server.processes.address_quotas import AddressQuotas
from headroom.server.processes.assembly import (
    ClusterView,
    administrators,
    listener_readings,
    loaded_subscriptions,
    new_gateway,
    subscriptions_path,
    subscriptions_task,
    telemetry_receiver,
)
from headroom.server.processes.network_processes import NetworkProcesses
from headroom.server.quotas.quota_state import QuotaState
from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.client_metrics import read_subscriptions
from quota_metrics.kafka.cluster import Cluster, Node
from quota_metrics.kafka.errors import UnsupportedError
from quota_metrics.measure.topic_meter import TopicCount
from telemetry.gateway.responses import Observe
from telemetry.gateway.server import Gateway
from telemetry.gateway.standalone_broker import SinkAnswers
from telemetry.receiver.telemetry_requests import TelemetryReceiver
from telemetry.subscriptions.java.hash import uuid_text
from telemetry.subscriptions.subscription_file import SubscriptionFile

log = structlog.get_logger(__name__)


class NetworkService(NamedTuple):
    """The running listeners and processes; `address` is the bootstrap address."""

    address: Address | None  # None: an observer, which has no listeners
    periodic_tasks: list[PeriodicTask]
    readings: Readings
    gateway: Gateway
    network: NetworkProcesses
    follow: Callable[[ServeConfig], Awaitable[None]]  # takes over reloaded settings, and reads subscriptions again
    quotas: QuotaState | None = None  # None: there is no cluster


async def open_network(
    config: ServeConfig,
    gateway: Gateway,
    nodes: Iterable[Node],
    stack: AsyncExitStack,
    observe: Observe = lambda _: None,
    addresses: AddressQuotas | None = None,
    topics: Callable[[TopicCount], None] = lambda _: None,
) -> tuple[Address | None, NetworkProcesses]:
    """Opens the listeners of this process, then starts the other network processes, with the same quotas on addresses.
    `observe` and `topics` get what those measured. An observer has neither. Raises ServeError."""
    address = None if config.observe else await listening(gateway.start(nodes), config.listen)
    network = NetworkProcesses(config, address, gateway, observe, addresses, topics)
    grace_s = config.gateway.drain_ms / 1000

    async def close() -> None:
        await asyncio.gather(gateway.close(grace_s), network.stop(grace_s))

    stack.push_async_callback(close)
    await network.start()
    return address, network


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
        await run_once(task)  # listeners open after subscriptions and quotas are known
    brokers = BrokerRefresh(admin, lambda: gateway.all_ports, partial(run_once, quotas.facts_task))
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
        await run_once(subscriptions)

    def readings() -> dict[SelfMetric, Values]:
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


async def open_sink(config: ServeConfig, pushes: PushSpool, stack: AsyncExitStack) -> NetworkService:
    """Raises ServeError. `stack` closes what is opened."""
    name = config.cluster or _cluster_id(config.data / "cluster-id")
    receiver = telemetry_receiver(config, pushes)
    path = subscriptions_path(config)
    if config.subscriptions or path.exists():
        file = loaded_subscriptions(path, receiver.rules)
    else:  # it is created with the first subscription
        file = SubscriptionFile(path, receiver.rules, now_ms)
    answers = SinkAnswers(name, file, administrators(config))
    gateway = new_gateway(config, name, receiver, pushes, local=answers.found_at)
    address, network = await open_network(config, gateway, [], stack)

    async def refresh() -> None:
        file.follow()

    followed = subscriptions_task(config, receiver.rules, refresh)

    async def follow(_: ServeConfig) -> None:
        await run_once(followed)

    return NetworkService(address, [followed], lambda: listener_readings(gateway), gateway, network, follow)


def _cluster_id(path: Path) -> str:
    try:
        if path.exists() and re.fullmatch(r"[\w-]{22}", stored := path.read_text("utf-8").strip()):
            return stored
        drawn = "-"
        while "-" in drawn:  # like Kafka's Uuid.randomUuid(): command lines may read '-' as an option
            drawn = uuid_text(uuid.uuid4().bytes)
        path.write_text(f"{drawn}\n", "utf-8")
    except OSError as exc:
        raise ServeError(f"cannot store the cluster's id in {path}: {exc.strerror}") from exc
    return drawn
