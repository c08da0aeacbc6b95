"""The gateway's sockets: unreachable brokers, clients that reset or send invalid bytes, and the group commit."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest
import uvloop
from structlog.testing import capture_logs

from quota_metrics.kafka.cluster import Node
from telemetry.gateway.admission import Reason
from telemetry.gateway.connection import ConnectionLimits
from telemetry.gateway.server import Gateway
from telemetry.receiver.group_commit import GroupCommit
from tests.kit.gateways import LOOPBACK, new_gateway


async def received_bytes(address: tuple[str, int]) -> bytes:
    """All bytes that a silent client receives."""
    reader, writer = await asyncio.open_connection(*address)
    received = await reader.read()
    writer.close()
    return received


async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


@pytest.fixture
def broker_port() -> int:
    """A free port."""
    with socket.create_server((LOOPBACK, 0)) as receiver:
        return int(receiver.getsockname()[1])


def test_broker_outage_is_counted_per_client_and_logged_once(broker_port: int) -> None:
    async def outage() -> Gateway:
        gateway = new_gateway()
        address = await gateway.start([Node(3, LOOPBACK, broker_port)])
        for _ in range(3):
            assert await received_bytes(address) == b""
        async with await asyncio.start_server(greet, LOOPBACK, broker_port):
            for _ in range(2):
                assert await received_bytes(address) == b""
        assert await received_bytes(address) == b""
        await gateway.close(grace_s=1)
        return gateway

    with capture_logs() as logs:
        gateway = asyncio.run(outage())
    reported = [
        (entry["log_level"], entry["event"], entry["broker_id"])
        for entry in logs
        if entry["event"] != "listener opened"
    ]
    away, back = ("warning", "cannot reach broker", 3), ("info", "broker is reachable again", 3)
    assert reported == [away, back, away]
    assert gateway.counts.upstream_failures == 4
    assert gateway.counts.connections == 0


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_broker_with_an_odd_host_name_hides_no_other(broker_port: int, run: Callable[[Any], Gateway]) -> None:
    async def bootstrap() -> Gateway:
        gateway = new_gateway()
        address = await gateway.start([Node(1, "b" * 64 + ".example", 9092), Node(2, LOOPBACK, broker_port)])
        async with await asyncio.start_server(greet, LOOPBACK, broker_port):
            async with asyncio.timeout(10):
                for _ in range(2):  # each begins with another broker
                    assert await received_bytes(address) == b""
        await gateway.close(grace_s=1)
        return gateway

    assert run(bootstrap()).counts.upstream_failures == 1


@pytest.mark.parametrize("alone", [True, False])
def test_client_reset_before_accept_leaks_nothing(alone: bool) -> None:
    def reset(address: tuple[str, int]) -> None:
        for _ in range(20):
            client = socket.create_connection(address)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()

    async def resets() -> None:
        async with await asyncio.start_server(greet, LOOPBACK, 0) as broker:
            port = broker.sockets[0].getsockname()[1]
            gateway = new_gateway(local=(lambda *_: {}) if alone else None)
            address = await gateway.start([] if alone else [Node(3, LOOPBACK, port)])
            reset(address)  # while the loop cannot accept
            while gateway.counts.connections_total < 20 or gateway.counts.connections:
                await asyncio.sleep(0.01)
            assert gateway.clients == set()
            await gateway.close(grace_s=1)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(resets(), 60))


def test_push_followed_by_invalid_bytes_is_flushed() -> None:
    flushed = asyncio.Event()

    async def garbage() -> None:
        gateway = new_gateway(flush=flushed.set, local=lambda *_: {})
        host, port = await gateway.start([])
        reader, writer = await asyncio.open_connection(host, port)
        get = struct.pack(">hhihs", 71, 0, 1, 1, b"a") + b"\x00" + bytes(15) + b"\x07\x00"
        writer.write(len(get).to_bytes(4, "big") + get + b"\xff\xff\xff\xff")
        await asyncio.wait_for(flushed.wait(), 60)
        assert await reader.read() == b""
        writer.close()
        await gateway.close(grace_s=1)

    asyncio.run(garbage())


@pytest.mark.parametrize("failure", [None, OSError(28, "No space left on device"), KeyError("a bug")])
def test_all_flush_callbacks_run_when_one_fails(failure: Exception | None) -> None:
    reported: list[object] = []

    def flush() -> None:
        if failure:
            raise failure

    def broken(_: bool) -> None:
        raise KeyError("a bug")

    async def turn() -> None:
        commit = GroupCommit(flush, reported.append)
        for done in (broken, reported.append):
            commit.soon(done)
        await asyncio.sleep(0.01)

    with capture_logs():
        asyncio.run(turn())
    assert reported == [failure is None] * 2


def partial_push(payload_bytes: int) -> bytes:
    """The request without its last byte."""
    push = struct.pack(">hhihs", 72, 0, 1, 1, b"a") + b"\x00" + bytes(16 + 6) + bytes(payload_bytes)
    return len(push).to_bytes(4, "big") + push[:-1]


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(), 60) == b""
    except ConnectionResetError:
        return True


def test_partial_pushes_stay_within_budget_and_block_nobody() -> None:
    async def flood() -> None:
        gateway = new_gateway(local=lambda *_: {}, max_held_bytes=1_000_000)
        address = await gateway.start([])
        slow = []
        for number in range(50):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(partial_push(100_000))
            slow.append((reader, writer))
            while (
                gateway.admission.held_bytes + 100_000 * gateway.admission.closed[Reason.HELD_BYTES] < 100_000 * number
            ):
                assert gateway.admission.held_bytes <= 1_100_000
                await asyncio.sleep(0.001)
        assert await is_closed(slow[0][0])
        reader, writer = await asyncio.open_connection(*address)
        writer.write(partial_push(100_000))
        await asyncio.sleep(0.05)
        writer.write(b"\x00")
        assert await asyncio.wait_for(reader.readexactly(4), 60)
        for _, client in [*slow, (reader, writer)]:
            client.close()
        await gateway.close(grace_s=1)
        while gateway.counts.connections:
            await asyncio.sleep(0.01)
        assert gateway.admission.held_bytes == 0
        assert gateway.admission.closed[Reason.HELD_BYTES] >= 40

    asyncio.run(flood())


def test_slow_request_and_idle_connection_are_closed() -> None:
    async def wait() -> None:
        gateway = new_gateway(local=lambda *_: {}, frame_timeout_s=0.1, idle_timeout_s=3.0)
        address = await gateway.start([])
        slow_reader, slow_writer = await asyncio.open_connection(*address)
        idle_reader, _idle_writer = await asyncio.open_connection(*address)
        slow_writer.write(partial_push(10))
        assert await is_closed(slow_reader)
        assert await is_closed(idle_reader)
        closed = {reason: count for reason, count in gateway.admission.closed.items() if count}
        assert closed == {Reason.FRAME_TIMEOUT: 1, Reason.IDLE: 1}
        await gateway.close(grace_s=1)

    asyncio.run(wait())


def test_connections_above_the_limit_are_refused_until_one_closes() -> None:
    async def crowd() -> None:
        gateway = new_gateway(local=lambda *_: {}, max_connections=2)
        address = await gateway.start([])
        first = await asyncio.open_connection(*address)
        second = await asyncio.open_connection(*address)
        third, _ = await asyncio.open_connection(*address)
        assert await is_closed(third)
        assert gateway.counts.connections == 2
        first[1].close()
        while gateway.counts.connections > 1:
            await asyncio.sleep(0.01)
        fourth = await asyncio.open_connection(*address)
        fourth[1].write(partial_push(10) + b"\x00")
        assert await asyncio.wait_for(fourth[0].readexactly(4), 60)
        second[1].close()
        fourth[1].close()
        await gateway.close(grace_s=1)
        assert gateway.admission.refused[Reason.TOO_MANY_CONNECTIONS] == 1

    asyncio.run(crowd())


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_client_with_too_many_requests_in_flight_is_not_read_until_there_are_fewer(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    numbers = range(300)

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        unanswered = 0
        try:
            while True:
                request = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                unanswered += 1
                await asyncio.sleep(0 if unanswered % 7 else 0.001)
                writer.write(struct.pack(">i4sib", 9, request[4:8], 0, 0))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def crowd() -> list[int]:
        async with await asyncio.start_server(slow, LOOPBACK, 0) as broker:
            gateway = new_gateway()
            gateway.limits = ConnectionLimits(max_in_flight=4)
            address = await gateway.start([Node(3, LOOPBACK, broker.sockets[0].getsockname()[1])])
            reader, writer = await asyncio.open_connection(*address)
            frame = struct.pack(">ihhih", 11, 12, 4, 0, 0) + b"\0"
            writer.write(b"".join(frame[:8] + struct.pack(">i", number) + frame[12:] for number in numbers))
            answered = [struct.unpack(">ii5x", await reader.readexactly(13))[1] for _ in numbers]
            writer.close()
            await gateway.close(grace_s=1)
            assert gateway.counts.protocol_errors == 0
            return answered

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(asyncio.wait_for(crowd(), 60)) == list(numbers)
