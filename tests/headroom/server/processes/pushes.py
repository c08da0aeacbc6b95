"""A push of one client to a Headroom that runs."""

from __future__ import annotations

import time

from tests.chaos.load import metrics_data
from tests.chaos.wire import WireClient


async def push(address: tuple[str, int], value: int) -> int:
    client = await WireClient.connect(*address, "early")
    try:
        subscription = await client.subscription(bytes(16))
        return await client.push(subscription, 0, metrics_data([value], time.time_ns(), b""))
    finally:
        client.close()
