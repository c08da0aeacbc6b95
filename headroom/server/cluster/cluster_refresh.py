"""Reads the cluster again when a client shows that a broker or the owner of a delegation token is not known yet."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence

import structlog

from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.cluster import Node
from quota_metrics.kafka.errors import ClusterError
from telemetry.gateway.broker_ports import BrokerPorts
from telemetry.gateway.security.sasl_tokens import TokenOwners

log = structlog.get_logger(__name__)

_AT_MOST_EVERY_S = 1.0  # limits readings that clients trigger by responses that name an unknown broker
_AGAIN_AFTER_S = 1.0
_AGAIN_AFTER_AT_MOST_S = 60.0  # for tokens that Headroom may not see


class BrokerRefresh:
    """Updates the brokers' ports from the cluster's metadata: periodically (`step`), and soon after a response names an
    unknown broker. `changed` runs beside it when brokers came, went or moved: one that was restarted may be configured
    in another way."""

    def __init__(
        self, admin: KafkaAdmin, ports: Sequence[BrokerPorts], changed: Callable[[], Coroutine[None, None, None]]
    ) -> None:
        self._admin = admin
        self._ports = ports
        self._changed = changed
        self._nodes: frozenset[Node] | None = None
        self._following: asyncio.Task[None] | None = None
        self._read_at_s = time.monotonic()
        self._soon: asyncio.Task[None] | None = None
        for one in ports:
            one.unknown = self.soon

    async def step(self) -> None:
        """Raises ClusterError."""
        self._read_at_s = time.monotonic()
        cluster = await self._admin.describe_cluster()
        for one in self._ports:
            one.update(cluster.nodes)
        before, self._nodes = self._nodes, frozenset(cluster.nodes)
        if before is not None and before != self._nodes and (self._following is None or self._following.done()):
            self._following = asyncio.get_running_loop().create_task(self._changed())

    def soon(self) -> None:
        """Reads the metadata again, at most once a second."""
        if self._soon is None or self._soon.done():
            self._soon = asyncio.get_running_loop().create_task(self._step_soon())

    def close(self) -> None:
        for task in (self._soon, self._following):
            if task is not None:
                task.cancel()

    async def _step_soon(self) -> None:
        await asyncio.sleep(max(0.0, self._read_at_s + _AT_MOST_EVERY_S - time.monotonic()))
        try:
            await self.step()
        except (ClusterError, OSError) as exc:
            log.warning("cannot read the cluster's brokers", error=str(exc))


class TokenOwnersRefresh:
    """Keeps `owners` as the cluster lists them, and calls `done` after each reading, also a failed one."""

    def __init__(
        self,
        admin: KafkaAdmin,
        owners: TokenOwners,
        done: Callable[[], None],
        again_after_s: float = _AGAIN_AFTER_S,
    ) -> None:
        self._admin = admin
        self._owners = owners
        self._done = done
        self._read_at_s = -math.inf
        self._again_after_s = self._wait_s = again_after_s
        self._soon: asyncio.Task[None] | None = None
        owners.unknown = self.soon

    def soon(self) -> None:
        """Reads now; or later, if the last reading was a moment ago or taught nothing new."""
        if self._soon is None or self._soon.done():
            self._soon = asyncio.get_running_loop().create_task(self._step())

    def close(self) -> None:
        if self._soon is not None:
            self._soon.cancel()

    async def _step(self) -> None:
        await asyncio.sleep(max(0.0, self._read_at_s + self._wait_s - time.monotonic()))
        self._read_at_s = time.monotonic()
        known = self._owners.owners
        self._owners.replace(await self._described(known))
        new = self._owners.owners.keys() - known.keys()
        self._wait_s = self._again_after_s if new else min(2 * self._wait_s, _AGAIN_AFTER_AT_MOST_S)
        self._done()

    async def _described(self, known: Mapping[str, str]) -> Mapping[str, str]:
        """The owners as the cluster describes them; `known` when it does not."""
        try:
            found = await self._admin.describe_token_owners()
        except (ClusterError, OSError) as exc:
            log.warning("cannot read the owners of delegation tokens", error=str(exc))
            return known
        if not found.keys() - known.keys():
            log.warning("a client has a delegation token that Headroom may not describe, and is recorded as unknown")
        return found
