"""Reads the owners of delegation tokens when a client has authenticated with one whose owner is not known."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping

import structlog

from quota_metrics.kafka.errors import ClusterError
from telemetry.gateway.security.token_owners import TokenOwners

log = structlog.get_logger(__name__)

_AGAIN_AFTER_S = 1.0
_AGAIN_AFTER_AT_MOST_S = 60.0  # for tokens that Headroom may not see


class TokenOwnersRefresh:
    """Keeps `owners` by `read`, and calls `done` after each reading, also a failed one."""

    def __init__(
        self,
        read: Callable[[], Awaitable[dict[str, str]]],
        owners: TokenOwners,
        done: Callable[[], None],
        again_after_s: float = _AGAIN_AFTER_S,
    ) -> None:
        self._read = read
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
            found = await self._read()
        except (ClusterError, OSError) as exc:
            log.warning("cannot read the owners of delegation tokens", error=str(exc))
            return known
        if not found.keys() - known.keys():
            log.warning("a client has a delegation token that Headroom may not describe, and is recorded as unknown")
        return found
