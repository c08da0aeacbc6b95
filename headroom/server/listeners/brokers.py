"""Updates the listeners from the metadata that Headroom's own admin connection reads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import structlog

from quota_metrics.kafka.admin import Cluster
from quota_metrics.kafka.errors import ClusterError
from telemetry.gateway.listeners import BrokerNode, Listeners

log = structlog.get_logger(__name__)

_AT_MOST_EVERY_S = 1.0  # limits readings that clients trigger by responses that name an unknown broker


class BrokerRefresh:
    """Updates `listeners` from `describe_cluster`: periodically (`step`), and soon after a response names an unknown
    broker."""

    def __init__(self, describe_cluster: Callable[[], Awaitable[Cluster]], listeners: Sequence[Listeners]) -> None:
        self._describe_cluster = describe_cluster
        self._listeners = listeners
        self._read_at_s = time.monotonic()
        self._soon: asyncio.Task[None] | None = None
        for one in listeners:
            one.unknown = self.soon

    async def step(self) -> None:
        """Raises ClusterError."""
        self._read_at_s = time.monotonic()
        nodes = nodes_of(await self._describe_cluster())
        for one in self._listeners:
            one.update(nodes)

    def soon(self) -> None:
        """Reads the metadata again, at most once a second."""
        if self._soon is None or self._soon.done():
            self._soon = asyncio.get_running_loop().create_task(self._step_soon())

    def close(self) -> None:
        if self._soon is not None:
            self._soon.cancel()

    async def _step_soon(self) -> None:
        await asyncio.sleep(max(0.0, self._read_at_s + _AT_MOST_EVERY_S - time.monotonic()))
        try:
            await self.step()
        except (ClusterError, OSError) as exc:
            log.warning("cannot read the cluster's brokers", error=str(exc))


def nodes_of(cluster: Cluster) -> list[BrokerNode]:
    return [BrokerNode(node.id, node.host, node.port) for node in cluster.nodes]
