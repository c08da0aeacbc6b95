"""Chooses the frames whose topics are read, and reports what was read. Sans-I/O.

Each Produce request and Fetch response is chosen with the same probability, independently of all others. So bytes that
were read, divided by this probability, are an unbiased estimate of all bytes, whatever the order of the frames.
"""

import math
from collections.abc import Callable
from typing import Final

from exporters.identity import payer_of, stored_name
from exporters.model import SampledTopics
from telemetry.gateway.security.client_identity import ClientIdentity
from telemetry.wire.apis import FETCH, PRODUCE
from telemetry.wire.frames import LENGTH_BYTES
from telemetry.wire.topic_bytes import TopicBytes

_DIRECTIONS: Final = {PRODUCE: "in", FETCH: "out"}


class TopicSampler:
    """Shared by all connections of a process."""

    def __init__(self, sample: float, uniform: Callable[[], float], observe: Callable[[SampledTopics], None]) -> None:
        """`sample`: the probability, above 0 and at most 1. `uniform` returns random numbers of [0, 1)."""
        self._log_of_rest = math.log1p(-sample) if sample < 1 else -math.inf
        self._uniform = uniform
        self.observe = observe
        self._skipped = self._gap()  # frames until the next one that is taken

    def takes_next(self) -> bool:
        """Whether the topics of the next frame are read."""
        if self._skipped:
            self._skipped -= 1
            return False
        self._skipped = self._gap()
        return True

    def _gap(self) -> int:
        """Draws how many frames are passed over before the next sampled one (geometric distribution)."""
        return int(math.log1p(-self._uniform()) / self._log_of_rest)


class SampledFrame:
    """One frame that is forwarded; it is observed with its last byte. `length`: without its length field."""

    __slots__ = ("_client_id", "_direction", "_left", "_observe", "_payer", "_read", "_user")

    def __init__(
        self,
        sampler: TopicSampler,
        client: ClientIdentity,
        api_key: int,
        version: int,
        client_id: str,
        length: int,
    ) -> None:
        self._user = stored_name(client.principal)
        self._payer = payer_of(self._user, client.address)
        self._client_id = stored_name(client_id)
        self._direction = _DIRECTIONS[api_key]
        self._read = TopicBytes(api_key, version)
        self._left = LENGTH_BYTES + length
        self._observe = sampler.observe

    def feed(self, data: bytes) -> None:
        self._left -= len(data)
        self._read.feed(data)
        if self._left <= 0 and (topics := self._read.topics):
            self._observe(SampledTopics(self._user, self._client_id, self._payer, self._direction, topics))
