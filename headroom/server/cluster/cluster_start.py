"""Waits until the cluster of a gateway or an observer answers, which may be long after the start."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from contextlib import AsyncExitStack

import structlog

from headroom.config.settings import ServeConfig
from headroom.server.processes.security import broker_security
from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.cluster import Cluster
from quota_metrics.kafka.errors import ClusterError

log = structlog.get_logger(__name__)

_RETRY_S = 0.5  # doubled after each attempt
_RETRY_MAX_S = 5.0


class ClusterStart:
    """The first request to the cluster, repeated until it is answered. `reason`: why that is not so yet.

    No answer ends the process: brokers start later, names are resolved later, and users are created later.
    """

    def __init__(self, config: ServeConfig, stack: AsyncExitStack) -> None:
        addresses = config.upstream or config.observe
        bootstrap = [(address.host, address.port) for address in addresses]
        self.admin = KafkaAdmin(bootstrap, security=broker_security(config), is_paced=True)  # beside the gateway
        stack.push_async_callback(self.admin.close)
        self._cluster = f"the cluster at {', '.join(map(str, addresses))}"
        self.reason = f"{self._cluster} has not answered yet"

    async def answered(self, stop: asyncio.Event, beside: Awaitable[object]) -> Cluster | None:
        """None when `stop` is set first. Raises what `beside` raises."""
        answer = asyncio.ensure_future(self._answer())
        stopped, beside = asyncio.ensure_future(stop.wait()), asyncio.ensure_future(beside)
        try:
            done, _ = await asyncio.wait([answer, stopped, beside], return_when=asyncio.FIRST_COMPLETED)
            if beside in done:
                await beside
            return answer.result() if answer in done else None
        finally:
            for waiting in (answer, stopped):
                waiting.cancel()
            await asyncio.gather(answer, stopped, return_exceptions=True)

    async def _answer(self) -> Cluster:
        began_s, wait_s = time.monotonic(), _RETRY_S
        logged: set[type[ClusterError]] = set()
        while True:
            try:
                cluster = await self.admin.describe_cluster()
            except ClusterError as exc:
                self.reason = f"cannot reach {self._cluster}: {exc}"
                if type(exc) not in logged:  # once for each kind, however long it takes
                    logged.add(type(exc))
                    log.warning("no Kafka client is served until the cluster answers, will retry", error=self.reason)
            else:
                if logged:
                    log.info("the cluster answers", after_s=round(time.monotonic() - began_s, 1))
                return cluster
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _RETRY_MAX_S)
