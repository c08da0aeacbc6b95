"""Clients that push unique numbers and record which were acknowledged."""

import asyncio
import gzip
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import cramjam
import lz4.frame
import zstandard
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from headroom.demo.processes import LOOPBACK
from tests.chaos.wire import WireClient
from tests.kit.wire import Subscription

POINTS_PER_PUSH = 4
_BACK_AFTER_S = 0.1
_UNKNOWN_SUBSCRIPTION_ID = 117


class Pushed(NamedTuple):
    """An answered push of the points from `first` on."""

    first: int
    code: int
    latency_s: float


@dataclass
class Ledger:
    """State shared by all clients. A point is identified by its value, which is unique."""

    acknowledged: set[int] = field(default_factory=set)
    answers: Counter[int] = field(default_factory=Counter)  # of pushes, by error code
    broken: int = 0  # connections that were lost
    log: list[Pushed] = field(default_factory=list)

    @property
    def pushes(self) -> int:
        return self.answers[0]


class Load:
    """Runs clients between `start` and `stop`. `address` is called before each connection, `source` is our end."""

    def __init__(
        self, clients: int, address: Callable[[], tuple[str, int]], rng: random.Random, source: str = LOOPBACK
    ) -> None:
        self.ledger = Ledger()
        self.padding_bytes = 0  # extra bytes in each push from now on
        self.is_paused = False  # clients stay connected and push nothing
        self._rngs = [random.Random(rng.random()) for _ in range(clients)]
        self._address = address
        self._source = source
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._client(n, rng)) for n, rng in enumerate(self._rngs)]

    async def stop(self) -> None:
        """Stops the clients after each has received the answer to its last push."""
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def _client(self, number: int, rng: random.Random) -> None:
        instance_id, first = bytes(16), number << 32
        while not self._stopping:
            try:
                client = await WireClient.connect(*self._address(), f"chaos-{number}", self._source)
            except (OSError, EOFError):
                await asyncio.sleep(_BACK_AFTER_S)
                continue
            try:
                subscription = await client.subscription(instance_id)
                instance_id = subscription.client_instance_id
                while not self._stopping:
                    points = list(range(first, first + POINTS_PER_PUSH))
                    first += POINTS_PER_PUSH  # an unacknowledged push may be stored or not: it is never sent again
                    if await self._push(client, subscription, points, rng) == _UNKNOWN_SUBSCRIPTION_ID:
                        break
                    await asyncio.sleep(subscription.interval_ms / 1000 * rng.uniform(1.0, 1.1))
                    while self.is_paused and not self._stopping:
                        await asyncio.sleep(_BACK_AFTER_S)
            except (OSError, EOFError):
                self.ledger.broken += 1
            finally:
                client.close()

    async def _push(self, client: WireClient, to: Subscription, points: list[int], rng: random.Random) -> int:
        codec = rng.randrange(5)
        payload = _compress(codec, metrics_data(points, time.time_ns(), rng.randbytes(self.padding_bytes)))
        began_s = time.monotonic()
        code = await client.push(to, codec, payload)
        self.ledger.log.append(Pushed(points[0], code, time.monotonic() - began_s))
        self.ledger.answers[code] += 1
        if code == 0:
            self.ledger.acknowledged.update(points)
        return code


def metrics_data(points: list[int], now_ns: int, padding: bytes) -> bytes:
    """A gauge for each point; `padding` enlarges the payload and is not an attribute of a point."""
    data = MetricsData()
    resource_metrics = data.resource_metrics.add()
    if padding:
        resource_metrics.resource.attributes.add(key="padding").value.string_value = padding.hex()
    scope_metrics = resource_metrics.scope_metrics.add()
    for n, value in enumerate(points):
        metric = scope_metrics.metrics.add(name=f"org.apache.kafka.chaos.{n}")
        metric.gauge.data_points.add(time_unix_nano=now_ns, as_double=value)
    return data.SerializeToString()


def _compress(codec: int, data: bytes) -> bytes:
    if codec == 1:
        return gzip.compress(data, 1)
    if codec == 2:
        return bytes(cramjam.snappy.compress_raw(data))
    if codec == 3:
        return bytes(lz4.frame.compress(data))
    if codec == 4:
        return zstandard.ZstdCompressor(1).compress(data)
    return data
