"""The cluster's brokers and owners of delegation tokens: read until the cluster answers, which may be long after the
start, and again when a client shows that one of them is not known yet."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack

import structlog

from headroom.config.settings import ServeConfig
from headroom.server.periodic import run_until
from headroom.server.processes.security import broker_security
from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.cluster import Cluster, Node
from quota_metrics.kafka.errors import ClusterError
from telemetry.gateway.broker_ports import BrokerPorts
from telemetry.gateway.security.sasl_tokens import TokenOwners

log = structlog.get_logger(__name__)

_RETRY_S = 0.5  # at the start; doubled after each attempt
_RETRY_MAX_S = 5.0
_AT_MOST_EVERY_S = 1.0  # limits readings that clients trigger by responses that name an unknown broker
_AGAIN_AFTER_S = 1.0
_AGAIN_AFTER_AT_MOST_S = 60.0  # for tokens that Headroom may not see


class ClusterStart:
    """The first request to the cluster, repeated until it is answered. `reason`: why that is not so yet. No answer ends
    the process: brokers start later, names are resolved later, and users are created later."""

    def __init__(self, config: ServeConfig, stack: AsyncExitStack) -> None:
        addresses = config.upstream or config.observe
        bootstrap = [(address.host, address.port) for address in addresses]
        self.admin = KafkaAdmin(bootstrap, security=broker_security(config), is_paced=True)  # beside the gateway
        stack.push_async_callback(self.admin.aclose)
        self._cluster = f"the cluster at {', '.join(map(str, addresses))}"
        self.reason = f"{self._cluster} has not answered yet"
        self._answer: Cluster | None = None

    async def answered(self, stop: asyncio.Event, beside: Awaitable[object]) -> Cluster | None:
        """None when `stop` is set first. Raises what `beside` raises."""
        await run_until(stop, beside, [self._ask()])
        return self._answer

    async def _ask(self) -> None:
        began_s, wait_s = time.monotonic(), _RETRY_S
        logged: set[type[ClusterError]] = set()
        while True:
            try:
                self._answer = await self.admin.describe_cluster()
            except ClusterError as exc:
                self.reason = f"cannot reach {self._cluster}: {exc}"
                if type(exc) not in logged:  # once for each kind, however long it takes
                    logged.add(type(exc))
                    log.warning("no Kafka client is served until the cluster answers, will retry", error=self.reason)
            else:
                if logged:
                    log.info("the cluster answers", after_s=round(time.monotonic() - began_s, 1))
                return
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _RETRY_MAX_S)


class BrokerRefresh:
    """Updates the brokers' ports from the cluster's metadata: periodically (`step`), and soon after a response names an
    unknown broker. `changed` runs beside it when brokers came, went or moved: one that was restarted may be configured
    in another way."""

    def __init__(
        self,
        admin: KafkaAdmin,
        listeners: Callable[[], Sequence[BrokerPorts]],
        changed: Callable[[], Coroutine[None, None, None]],
    ) -> None:
        self._admin = admin
        self._listeners = listeners
        self._changed = changed
        self._nodes: frozenset[Node] | None = None
        self._following: asyncio.Task[None] | None = None
        self._read_at_s = time.monotonic()
        self._soon: asyncio.Task[None] | None = None

    async def step(self) -> None:
        """Raises ClusterError."""
        self._read_at_s = time.monotonic()
        cluster = await self._admin.describe_cluster()
        for ports in self._listeners():
            ports.update(cluster.nodes)
        before, self._nodes = self._nodes, frozenset(cluster.nodes)
        if before is not None and before != self._nodes and (self._following is None or self._following.done()):
            self._following = asyncio.get_running_loop().create_task(self._changed())

    def soon(self) -> None:
        """At most once a second."""
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
    """Keeps `owners` as the cluster lists them: reads when a client shows an unknown token, and replaces them after
    each reading, also a failed one."""

    def __init__(self, admin: KafkaAdmin, again_after_s: float = _AGAIN_AFTER_S) -> None:
        self.owners = TokenOwners(self.soon)
        self._admin = admin
        self._read_at_s = -math.inf
        self._again_after_s = self._wait_s = again_after_s
        self._soon: asyncio.Task[None] | None = None

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
        before = self.owners.owners
        described = before
        try:
            described = await self._admin.describe_token_owners()
        except (ClusterError, OSError) as exc:
            log.warning("cannot read the owners of delegation tokens", error=str(exc))
        else:
            if not described.keys() - before.keys():
                log.warning(
                    "a client has a delegation token that Headroom may not describe, and is recorded as unknown"
                )
        self.owners.replace(described)
        has_new = bool(self.owners.owners.keys() - before.keys())
        self._wait_s = self._again_after_s if has_new else min(2 * self._wait_s, _AGAIN_AFTER_AT_MOST_S)
