"""Opens the Kafka listeners of a gateway or sink, and starts its further network processes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

from headroom.config.settings import ServeConfig
from headroom.errors import listening
from headroom.server.metrics import Readings
from headroom.server.periodic import PeriodicTask
from headroom.server.processes.address_quotas import AddressQuotas
from headroom.server.processes.network_supervisor import NetworkProcesses, Take
from quota_metrics.kafka.cluster import Node
from quota_metrics.measure.payers import PayerCount
from quota_metrics.measure.topic_meter import TopicCount
from telemetry.gateway.server import Gateway


class NetworkService(NamedTuple):
    """The running listeners and processes; `address` is the bootstrap address."""

    address: tuple[str, int] | None  # None: an observer, which has no listeners
    periodic_tasks: list[PeriodicTask]
    readings: Readings
    gateway: Gateway
    network: NetworkProcesses
    follow: Callable[[ServeConfig], Awaitable[None]]  # takes over reloaded settings, and reads subscriptions again
    cluster: Callable[[], dict[str, Any]] | None = None  # the cluster's facts as JSON; None: there is no cluster
    left_out: Callable[[], list[PayerCount]] = list  # whose exchanges were not metered lately, most first
    long_names: Callable[[], list[PayerCount]] = list  # whose clients had names that were shortened lately, most first


def no_network(config: ServeConfig, gateway: Gateway, take: Take) -> NetworkProcesses:
    """For an observer: no listeners and no further processes."""
    return NetworkProcesses(config, (config.listen.host, config.listen.port), gateway, take)


async def open_network(
    config: ServeConfig,
    gateway: Gateway,
    nodes: Iterable[Node],
    take: Take,
    stack: AsyncExitStack,
    addresses: AddressQuotas | None = None,
    topics: Callable[[TopicCount], None] = lambda _: None,
) -> tuple[tuple[str, int], NetworkProcesses]:
    """Opens the listeners of this process, then starts the other network processes, with the same quotas on addresses.
    `take` and `topics` get what those measured. Raises ServeError."""
    address = await listening(gateway.start(nodes), config.listen)
    network = NetworkProcesses(config, address, gateway, take, addresses, topics)
    grace_s = config.gateway.drain_ms / 1000

    async def close() -> None:
        await asyncio.gather(gateway.close(grace_s), network.stop(grace_s))

    stack.push_async_callback(close)
    await network.start()
    return address, network
