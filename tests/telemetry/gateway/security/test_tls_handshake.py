"""Connections that never begin or never finish a TLS handshake are counted and closed in time."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import cast

import pytest
import uvloop

from telemetry.gateway.admission import Admission, AdmissionLimits, Reason
from telemetry.gateway.client_connection import TimedConnection, enforce_timeouts
from telemetry.gateway.listener import HandshakeServer
from telemetry.gateway.security.listener_security import ListenerTls
from tests.kit.certificates import CertificateAuthority

LOOPBACK = "127.0.0.1"
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


class Listener:
    """An echo behind TLS on loopback."""

    def __init__(self, authority: CertificateAuthority, limits: AdmissionLimits) -> None:
        self.admission: Admission[TimedConnection] = Admission(limits)
        self.port = 0
        self._tls = ListenerTls(*authority.issue("listener"), None, "none").context
        self._trusted = ssl.create_default_context(cafile=str(authority.ca))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        listener = socket.create_server((LOOPBACK, 0))
        listener.setblocking(False)
        self.port = listener.getsockname()[1]
        server = HandshakeServer(listener, self._tls, self.admission, Echo)
        timeouts = asyncio.create_task(enforce_timeouts(self.admission, list))
        yield
        timeouts.cancel()
        server.close()

    async def connect(self) -> socket.socket:
        """A connected socket that sends nothing."""
        plain = socket.create_connection((LOOPBACK, self.port), 5)
        plain.setblocking(False)
        await asyncio.sleep(0.02)
        return plain

    async def echo(self, data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(LOOPBACK, self.port, ssl=self._trusted, server_hostname=LOOPBACK)
        writer.write(data)
        answer = await reader.readexactly(len(data))
        writer.close()
        return answer


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority(tmp_path_factory.mktemp("ca"))


def run(new_loop: Callable[[], asyncio.AbstractEventLoop], main: Coroutine[None, None, None]) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main)


async def is_closed(client: socket.socket) -> bool:
    try:
        return await asyncio.get_running_loop().sock_recv(client, 1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("new_loop", LOOPS)
def test_connections_without_handshake_count_towards_the_limit(
    new_loop: Callable[[], asyncio.AbstractEventLoop], authority: CertificateAuthority
) -> None:
    listener = Listener(authority, AdmissionLimits(max_connections_per_address=3))

    async def crowd() -> None:
        async with listener.running():
            assert await listener.echo(b"before") == b"before"
            silent = [await listener.connect() for _ in range(3)]
            more = [await listener.connect() for _ in range(4)]
            for client in more:
                async with asyncio.timeout(60):
                    assert await is_closed(client)
            assert listener.admission.refused[Reason.TOO_MANY_FROM_ADDRESS] == 4
            for client in [*silent, *more]:
                client.close()
            async with asyncio.timeout(60):
                while True:  # until the closed ones are noticed
                    with contextlib.suppress(OSError):
                        assert await listener.echo(b"after") == b"after"
                        break

    run(new_loop, crowd())


@pytest.mark.parametrize("new_loop", LOOPS)
def test_unfinished_handshake_is_closed_and_counted(
    new_loop: Callable[[], asyncio.AbstractEventLoop], authority: CertificateAuthority
) -> None:
    listener = Listener(authority, AdmissionLimits(handshake_timeout_s=0.1))

    async def silence() -> None:
        async with listener.running(), asyncio.timeout(60):
            silent, half = await listener.connect(), await listener.connect()
            half.send(bytes.fromhex("16030100c8010000c40303"))
            assert await is_closed(silent)
            assert await is_closed(half)
            assert listener.admission.closed[Reason.HANDSHAKE_TIMEOUT] == 2
            garbage = await listener.connect()
            garbage.send(b"GET / HTTP/1.1\r\n\r\n" * 20)
            while not await is_closed(garbage):  # an alert comes first
                pass
            for client in (silent, half, garbage):
                client.close()

    run(new_loop, silence())


@pytest.mark.parametrize("new_loop", LOOPS)
def test_data_in_the_last_handshake_segment_is_delivered(
    new_loop: Callable[[], asyncio.AbstractEventLoop], authority: CertificateAuthority
) -> None:
    """The client's last flight and its first request in one segment, as TLS 1.3 allows."""
    listener = Listener(authority, AdmissionLimits())
    trusted = ssl.create_default_context(cafile=str(authority.ca))

    def in_one_segment(data: bytes) -> bytes:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = trusted.wrap_bio(incoming, outgoing, server_hostname=LOOPBACK)
        with socket.create_connection((LOOPBACK, listener.port), 5) as plain:
            while True:
                try:
                    client.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    plain.sendall(outgoing.read())
                    incoming.write(plain.recv(1 << 16))
            client.write(data)
            plain.sendall(outgoing.read())
            answer = b""
            while len(answer) < len(data):
                try:
                    answer += client.read(1 << 16)
                except ssl.SSLWantReadError:
                    incoming.write(plain.recv(1 << 16))
            return answer

    async def at_once() -> None:
        async with listener.running():
            for size in (1, 1_000, 10_000):
                assert await asyncio.to_thread(in_one_segment, b"x" * size) == b"x" * size

    run(new_loop, at_once())
