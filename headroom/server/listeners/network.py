"""Opens the Kafka listeners of a gateway or sink, and starts its further network processes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from typing import NamedTuple

from headroom.config.settings import Address, ServeConfig
from headroom.server.addresses import listening
from headroom.server.metrics import Readings
from headroom.server.periodic import PeriodicTask
from headroom.server.processes.address_quotas import AddressQuotas
from headroom.server.processes.network_processes import NetworkProcesses
from headroom.server.quotas.quota_state import QuotaState
from quota_metrics.kafka.cluster import Node
from quota_metrics.measure.topic_meter import TopicCount
from telemetry.gateway.responses import Observe
from telemetry.gateway.server import Gateway


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
    take: Observe = lambda _: None,
    addresses: AddressQuotas | None = None,
    topics: Callable[[TopicCount], None] = lambda _: None,
) -> tuple[Address | None, NetworkProcesses]:
    """Opens the listeners of this process, then starts the other network processes, with the same quotas on addresses.
    `take` and `topics` get what those measured. An observer has neither. Raises ServeError."""
    address = None if config.observe else await listening(gateway.start(nodes), config.listen)
    network = NetworkProcesses(config, address, gateway, take, addresses, topics)
    grace_s = config.gateway.drain_ms / 1000

    async def close() -> None:
        await asyncio.gather(gateway.close(grace_s), network.stop(grace_s))

    stack.push_async_callback(close)
    await network.start()
    return address, network
