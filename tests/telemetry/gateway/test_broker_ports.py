"""telemetry/gateway/broker_ports.py: open ports, several processes at the same ones, server names, networks."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from quota_metrics.kafka.cluster import Node
from telemetry.gateway.broker_ports import BOOTSTRAP, BrokerNames, BrokerNamesError, BrokerPorts, PortOptions
from telemetry.gateway.networks import is_in, networks_of
from tests.kit.free_ports import free_range
from tests.kit.grpc_servers import in_loop

LOOPBACK = "127.0.0.1"
NODE, OTHER = Node(5, "broker.example", 9092), Node(6, "other.example", 9092)


def greeting(name: str) -> Callable[[socket.socket, int], Coroutine[None, None, asyncio.Server]]:
    """Sends the name of the process and the listener that accepted the connection."""

    async def listen(listener: socket.socket, node_id: int) -> asyncio.Server:
        def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(f"{name} {node_id}".encode())
            writer.close()

        return await asyncio.start_server(greet, sock=listener)

    return listen


def opener(port: int = 0, **options: Any) -> BrokerPorts:
    return BrokerPorts(LOOPBACK, port, greeting("opener"), PortOptions(shared=True, **options))


def follower(port: int, **options: Any) -> BrokerPorts:
    return BrokerPorts(LOOPBACK, port, greeting("follower"), PortOptions(follows=True, **options))


async def greetings(port: int, count: int = 60) -> set[str]:
    """The distinct greetings of `count` connections, opened one after the other."""
    heard = set()
    for _ in range(count):
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        heard.add((await reader.read()).decode())
        writer.close()
    return heard


def ports(listeners: BrokerPorts) -> dict[int, int]:
    return {node.id: port for node, port in listeners}


async def refuses(port: int) -> bool:
    await asyncio.sleep(0)  # sockets are closed by the loop
    try:
        _, writer = await asyncio.open_connection(LOOPBACK, port)
    except ConnectionRefusedError:
        return True
    writer.close()
    return False


@in_loop
async def test_follower_opens_only_reported_listeners() -> None:
    first, unknown = opener(), list[int]()
    _, port = await first.open([])
    second = follower(port, unknown=lambda: unknown.append(1))
    await second.open([])
    assert await greetings(port) == {"opener -1", "follower -1"}

    assert [second.port_of(5), second.port_of(5)] == [port, port]
    assert unknown == [1]
    assert [*second] == []
    first.update([NODE])
    listener, reported = first.port_of(5), [*first]
    assert reported == [(NODE, listener)]
    assert await greetings(listener) == {"opener 5"}
    await second.follow(reported)
    await second.follow(reported)
    assert second.port_of(5) == listener
    assert await greetings(listener) == {"opener 5", "follower 5"}
    await second.follow([])
    assert [*second] == []
    assert await greetings(listener) == {"opener 5"}
    second.close()
    assert await greetings(port) == {"opener -1"}
    first.close()


@in_loop
async def test_port_of_a_moved_broker_is_kept_and_of_a_removed_one_closed() -> None:
    first = opener()
    await first.open([NODE, OTHER])
    port, moved = first.port_of(5), Node(5, "moved.example", 9093)
    first.update([moved, OTHER])
    assert first.candidates(5) == [moved]
    assert next(iter(first)) == (moved, port)
    for _ in range(2):
        first.update([OTHER])
        first.update([])  # no reading
    first.update([NODE, OTHER])  # it was restarted
    for _ in range(2):
        first.update([OTHER])
    assert not await refuses(port)
    first.update([OTHER])
    assert await refuses(port)
    assert set(ports(first)) == {6}
    assert first.candidates(5) == []
    first.update([NODE, OTHER])
    assert await greetings(first.port_of(5), 1) == {"opener 5"}
    first.close()


@in_loop
async def test_unknown_brokers_request_metadata_once_each_and_open_no_port() -> None:
    unknown = list[int]()
    first = opener(unknown=lambda: unknown.append(1))
    _, port = await first.open([NODE])
    assert {first.port_of(node_id) for node_id in range(100, 3_100)} == {port}
    assert set(ports(first)) == {5}
    assert len(unknown) == 1_000
    first.update([NODE])
    first.port_of(100)
    assert len(unknown) == 1_001
    first.close()


@in_loop
async def test_bootstrap_connections_fall_back_to_configured_addresses() -> None:
    fallback = [Node(-1, NODE.host, NODE.port), Node(-1, "bootstrap.example", 9092)]
    first = opener(fallback=fallback)
    await first.open([])
    assert first.candidates(BOOTSTRAP) == fallback
    first.update([NODE])
    assert first.candidates(BOOTSTRAP) == [NODE, fallback[1]]
    assert first.candidates(5) == [NODE]
    first.close()


@in_loop
async def test_reserved_ports_are_not_assigned() -> None:
    port = free_range(10)
    first = opener(port, reserved={port + 6})
    await first.open([NODE, OTHER])
    assert ports(first)[5] != port + 6
    assert ports(first)[6] == port + 7
    first.close()


@in_loop
async def test_clients_are_sent_to_the_ports_that_they_see() -> None:
    port = free_range(10)
    first = opener(port, advertised_port=19_092)
    await first.open([NODE])
    second = follower(port, advertised_port=19_092)
    await second.open([])
    await second.follow([*first])
    for listeners in (first, second):
        assert listeners.address_of(5, "node.example") == ("node.example", 19_098)
        assert listeners.address_of(99, "node.example") == ("node.example", 19_092)  # unknown: bootstrap
        assert listeners.advertised(port) == 19_092
    assert ports(first) == {5: port + 6}
    first.close()
    second.close()


@in_loop
async def test_no_free_port_takes_the_place_of_one_that_others_lead_to() -> None:
    port = free_range(10)
    first = opener(port, advertised_port=65_530, reserved={port + 2})
    with socket.create_server((LOOPBACK, port + 3)):
        await first.open([Node(number, "broker.example", 9092) for number in (0, 1, 2, 8)])
    assert ports(first) == {0: port + 1}  # the others: reserved, in use, advertised above 65535
    first.update([Node(number, "broker.example", 9092) for number in (0, 2)])
    assert first.address_of(2, "node.example") == ("node.example", 65_533)
    first.close()


@in_loop
async def test_follower_opens_remaining_listeners_when_one_port_is_taken() -> None:
    first = opener()
    _, port = await first.open([OTHER])
    second = follower(port)
    await second.open([])
    with socket.create_server((LOOPBACK, 0)) as taken:
        reported = [(NODE, taken.getsockname()[1]), *first]
        for _ in range(3):
            with pytest.raises(OSError, match="in use"):
                await second.follow(reported)
            assert second.port_of(5) == port
    assert [*second] == reported[1:]
    await second.follow(reported)
    assert {*second} == {*reported}
    first.close()
    second.close()


@pytest.mark.parametrize("reuse_port", [False, True])
@in_loop
async def test_shared_port_in_use_raises_os_error(reuse_port: bool) -> None:
    with (
        socket.create_server((LOOPBACK, 0), reuse_port=reuse_port) as other,
        pytest.raises(OSError, match="in use"),
    ):
        await opener(other.getsockname()[1]).open([])


NAMES = BrokerNames("broker-{id}.gateway.example")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("broker-5.gateway.example", 5),
        ("BROKER-5.Gateway.Example", 5),
        ("broker-0.gateway.example", 0),
        ("bootstrap.gateway.example", None),
        ("broker-5.gateway.example.evil", None),
        ("broker-5xgateway.example", None),
        ("broker--5.gateway.example", None),
        ("broker-12345678901.gateway.example", None),
        ("broker-\u0665.gateway.example", None),  # a digit outside ASCII
        ("", None),
        (None, None),
    ],
)
def test_node_id_of_server_name(name: str | None, expected: int | None) -> None:
    assert NAMES.node_id(name) == expected


def test_advertised_address_of_broker() -> None:
    assert NAMES.address_of(5, 9092) == ("broker-5.gateway.example", 9092)
    assert BrokerNames("b{id}.example:").address_of(1, 9) == ("b1.example", 9)
    assert BrokerNames("b{id}.example:443").address_of(0, 9092) == ("b0.example", 443)


@pytest.mark.parametrize(
    "pattern", ["broker.example", "b{id}{id}.example", "b {id}", "b{id}:70000", "", "{id}..example"]
)
def test_invalid_pattern_raises_broker_names_error(pattern: str) -> None:
    with pytest.raises(BrokerNamesError):
        BrokerNames(pattern)


@in_loop
async def test_brokers_share_one_port_and_unknown_broker_has_no_candidates() -> None:
    asked: list[int] = []
    listeners = opener(names=NAMES, unknown=lambda: asked.append(1))
    _, port = await listeners.open([NODE])
    assert [*listeners] == [(NODE, port)]
    assert listeners.address_of(5, "ignored") == ("broker-5.gateway.example", port)
    assert listeners.node_of(BOOTSTRAP, lambda: "broker-5.gateway.example") == 5
    assert listeners.node_of(BOOTSTRAP, lambda: "bootstrap.gateway.example") == BOOTSTRAP
    assert listeners.node_of(BOOTSTRAP, lambda: None) == BOOTSTRAP
    assert not asked
    assert listeners.address_of(6, "ignored") == ("broker-6.gateway.example", port)
    assert asked
    assert listeners.candidates(6) == []
    second = follower(port, names=NAMES, advertised_port=443)
    await second.follow([*listeners])
    assert second.candidates(5) == [NODE]
    assert second.address_of(5, "ignored") == ("broker-5.gateway.example", 443)  # the port that clients see
    listeners.close()


def test_networks_are_parsed_from_cidr_or_address() -> None:
    networks = networks_of(["10.1.2.3/8", " 192.0.2.7", "2001:db8::/32"])
    assert all(is_in(address, networks) for address in ("10.255.0.1", "192.0.2.7", "2001:db8::5", "::ffff:10.0.0.1"))
    assert not any(is_in(address, networks) for address in ("11.0.0.1", "192.0.2.8", "2001:db9::5", "::ffff:11.0.0.1"))
    with pytest.raises(ValueError, match="not appear to be"):
        networks_of(["10.0.0.0/33"])
