"""telemetry/gateway/listeners.py, where several processes listen at the same ports."""

from __future__ import annotations

import asyncio
import socket

import pytest

from telemetry.gateway.listeners import BrokerNode, Listeners

LOOPBACK = "127.0.0.1"
NODE = BrokerNode(5, "broker.example", 9092)


class Greeter(asyncio.Protocol):
    """Says through which listener of whose one came."""

    def __init__(self, text: str) -> None:
        self._text = text

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._text.encode())
        transport.close()


def opener(port: int = 0) -> Listeners:
    return Listeners(host=LOOPBACK, port=port, serve=lambda node_id: Greeter(f"opener {node_id}"), shared=True)


def follower(port: int, asked: list[BrokerNode]) -> Listeners:
    return Listeners(host=LOOPBACK, port=port, serve=lambda node_id: Greeter(f"follower {node_id}"), ask=asked.append)


async def greetings(port: int, count: int = 60) -> set[str]:
    """Of many that come in one after the other."""
    heard = set()
    for _ in range(count):
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        heard.add((await reader.read()).decode())
        writer.close()
    return heard


def test_a_follower_invents_no_port_and_shares_those_it_is_told() -> None:
    async def run() -> None:
        first, asked = opener(), list[BrokerNode]()
        _, port = await first.open([])
        second = follower(port, asked)
        await second.open([])
        assert await greetings(port) == {"opener -1", "follower -1"}

        for _ in range(2):
            assert second.port_of(NODE.node_id, NODE.host, NODE.port) == port
        assert asked == [NODE]
        assert [*second] == []
        told = []
        first.opened = lambda: told.extend(first)
        listener = first.port_of(NODE.node_id, NODE.host, NODE.port)
        assert told == [(NODE, listener)]
        assert await greetings(listener) == {"opener 5"}
        await second.follow(told)
        await second.follow(told)
        assert second.port_of(NODE.node_id, NODE.host, NODE.port) == listener
        assert await greetings(listener) == {"opener 5", "follower 5"}
        second.close()
        assert await greetings(port) == {"opener -1"}
        first.close()

    asyncio.run(run())


def test_what_a_follower_heard_of_a_broker_is_newer_than_what_it_is_told() -> None:
    async def run() -> None:
        first = opener()
        _, port = await first.open([NODE])
        second = follower(port, [])
        await second.open([])
        moved = BrokerNode(NODE.node_id, "moved.example", 9093)
        second.port_of(moved.node_id, moved.host, moved.port)
        await second.follow(first)
        assert second.candidates(NODE.node_id) == [moved]
        first.close()
        second.close()

    asyncio.run(run())


def test_a_door_that_cannot_be_followed_keeps_no_other_closed_and_is_asked_for_once() -> None:
    async def run() -> None:
        first, asked, other = opener(), list[BrokerNode](), BrokerNode(6, "other.example", 9092)
        _, port = await first.open([])
        second = follower(port, asked)
        await second.open([])
        with socket.create_server((LOOPBACK, 0)) as taken:
            told = [(NODE, taken.getsockname()[1]), (other, first.port_of(other.node_id, other.host, other.port))]
            for _ in range(3):
                assert second.port_of(NODE.node_id, NODE.host, NODE.port) == port
                with pytest.raises(OSError, match="in use"):
                    await second.follow(told)
        assert asked == [NODE]
        assert [*second] == told[1:]
        await second.follow(told)
        assert {*second} == {*told}
        first.close()
        second.close()

    asyncio.run(run())


@pytest.mark.parametrize("reuse_port", [False, True])
def test_a_shared_port_that_somebody_else_has_is_refused(reuse_port: bool) -> None:
    async def run() -> None:
        with (
            socket.create_server((LOOPBACK, 0), reuse_port=reuse_port) as other,
            pytest.raises(OSError, match="in use"),
        ):
            await opener(other.getsockname()[1]).open([])

    asyncio.run(run())
