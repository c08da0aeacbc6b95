"""The gateway's sockets: what becomes of clients whose broker is away."""

from __future__ import annotations

import asyncio
import socket
import uuid

import pytest
from structlog.testing import capture_logs

from telemetry.doors import BrokerNode
from telemetry.exchanges import Limits
from telemetry.gateway import Gateway
from telemetry.push import TelemetryDoor
from telemetry.subscriptions import ClientMetrics

LOOPBACK = "127.0.0.1"


def new_gateway() -> Gateway:
    rules = ClientMetrics(new_id=lambda: uuid.uuid4().bytes)
    return Gateway(
        cluster="test",
        host=LOOPBACK,
        port=0,
        advertised_host=None,
        door=TelemetryDoor(rules, append=lambda *_: None, telemetry_max_bytes=1_000),
        flush=lambda: None,
        observe=lambda **_: None,
        now_ms=lambda: 0,
        limits=Limits(),
        connect_timeout_s=5,
    )


async def comes_in(address: tuple[str, int]) -> bytes:
    """All that a client gets that sends nothing."""
    reader, writer = await asyncio.open_connection(*address)
    received = await reader.read()
    writer.close()
    return received


async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


@pytest.fixture
def broker_port() -> int:
    """A port that nobody listens on yet."""
    with socket.create_server((LOOPBACK, 0)) as door:
        return int(door.getsockname()[1])


def test_an_outage_is_counted_for_each_client_and_logged_once(broker_port: int) -> None:
    async def outage() -> Gateway:
        gateway = new_gateway()
        address = await gateway.start([BrokerNode(3, LOOPBACK, broker_port)])
        for _ in range(3):
            assert await comes_in(address) == b""
        async with await asyncio.start_server(greet, LOOPBACK, broker_port):
            for _ in range(2):
                assert await comes_in(address) == b""
        assert await comes_in(address) == b""
        await gateway.close(grace_s=1)
        return gateway

    with capture_logs() as logs:
        gateway = asyncio.run(outage())
    told = [
        (entry["log_level"], entry["event"], entry["broker_id"]) for entry in logs if entry["event"] != "door opened"
    ]
    away, back = ("warning", "cannot reach broker", 3), ("info", "broker is reached again", 3)
    assert told == [away, back, away]
    assert gateway.counts.upstream_failures == 4
    assert gateway.counts.connections == 0
