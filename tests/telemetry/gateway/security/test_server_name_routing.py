"""TLS server names at one port: which broker each name selects, with brokers that only send their id."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
import uvloop

from quota_metrics.kafka.cluster import Node
from telemetry.gateway.broker_ports import BrokerNames, PortOptions
from telemetry.gateway.listener import ListenerOptions
from telemetry.gateway.security.listener_security import ListenerSecurity, ListenerTls
from tests.kit.certificates import CertificateAuthority
from tests.kit.gateways import new_gateway

LOOPBACK = "127.0.0.1"
DOMAIN = "gateway.example"


async def broker(number: int) -> asyncio.Server:
    """Sends an unsolicited frame with its number on each connection."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\0\0\0\x05" + b"\0\0\0\0" + bytes([number]))
        await writer.drain()

    return await asyncio.start_server(answer, LOOPBACK, 0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (f"broker-1.{DOMAIN}", {1}),
        (f"BROKER-2.{DOMAIN}", {2}),
        (f"bootstrap.{DOMAIN}", {1, 2}),
        (f"broker-3.{DOMAIN}", set()),  # it does not exist
    ],
)
def test_server_name_selects_the_broker(name: str, expected: set[int], tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    tls = ListenerTls(*authority.issue("named", host_name=f"*.{DOMAIN}"), None, "none")
    trusting = ssl.create_default_context(cafile=authority.ca)

    async def reached_broker(port: int) -> int | None:
        reader, writer = await asyncio.open_connection(LOOPBACK, port, ssl=trusting, server_hostname=name)
        answer = await asyncio.wait_for(reader.read(9), 30)
        writer.close()
        return answer[-1] if answer else None

    async def run() -> None:
        brokers = [await broker(number) for number in (1, 2)]
        listener = ListenerOptions(
            LOOPBACK,
            0,
            security=ListenerSecurity(protocol="SSL", tls=tls.context, server_names=tls.server_names),
            ports=PortOptions(names=BrokerNames(f"broker-{{id}}.{DOMAIN}")),
        )
        gateway = new_gateway(listener=listener, connect_timeout_s=30)
        ports = [server.sockets[0].getsockname()[1] for server in brokers]
        _, port = await gateway.start([Node(number, LOOPBACK, at) for number, at in enumerate(ports, start=1)])
        reached = {await reached_broker(port) for _ in range(4)}
        assert reached - {None} == expected
        assert (None in reached) == (not expected)
        await gateway.close(grace_s=0)
        for server in brokers:
            server.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
