"""Pushes of one client to a Headroom that runs."""

import asyncio
import time
from contextlib import closing

from telemetry.wire.errors import ErrorCode
from tests.chaos.load import metrics_data
from tests.chaos.wire import WireClient


async def push(address: tuple[str, int], *values: int, client_id: str = "early") -> None:
    """One push for each value; all are acknowledged, each after its interval."""
    with closing(await WireClient.connect(*address, client_id)) as client:
        subscription = await client.subscription(bytes(16))
        for value in values:
            payload = metrics_data([value], time.time_ns(), b"")
            while (code := await client.push(subscription, 0, payload)) == ErrorCode.THROTTLING_QUOTA_EXCEEDED:
                await asyncio.sleep(0.1)
            assert code == ErrorCode.NONE
