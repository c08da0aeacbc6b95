"""Brokers distinguished by TLS server name: patterns, and listeners that share a port."""

from __future__ import annotations

import asyncio
import socket

import pytest

from quota_metrics.kafka.cluster import Node
from telemetry.gateway.broker_ports import BOOTSTRAP, BrokerNames, BrokerNamesError, BrokerPorts, PortOptions
from tests.kit.grpc_servers import in_loop

NAMES = BrokerNames("broker-{id}.gateway.example")
NODE = Node(5, "broker.internal", 9092)


async def accept(listener: socket.socket, _: int) -> asyncio.Server:
    return await asyncio.get_running_loop().create_server(asyncio.Protocol, sock=listener)


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
async def test_names_without_a_port_get_the_one_that_clients_see() -> None:
    listeners = BrokerPorts("127.0.0.1", 0, accept, PortOptions(names=NAMES, advertised_port=443))
    await listeners.open([NODE])
    assert listeners.address_of(5, "any") == ("broker-5.gateway.example", 443)
    listeners.close()


@in_loop
async def test_brokers_share_one_port_and_unknown_broker_has_no_candidates() -> None:
    asked: list[int] = []
    options = PortOptions(names=NAMES, unknown=lambda: asked.append(1))
    listeners = BrokerPorts("127.0.0.1", 0, accept, options)
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
    follower = BrokerPorts("127.0.0.1", port, accept, PortOptions(names=NAMES))
    follower._port = port  # it listens on the same port
    await follower.follow([*listeners])
    assert follower.candidates(5) == [NODE]
    listeners.close()
