"""The HTTP endpoint under peers that send nothing, read nothing, or send what is not HTTP."""

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from headroom.server import http
from headroom.server.http import HttpServer
from tests.kit.certificates import CertificateAuthority
from tests.kit.grpc_servers import in_loop, until

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
LONG = b"GET /long HTTP/1.1\r\nHost: localhost\r\n\r\n"
LONG_BYTES = 32 << 20  # far more than sockets buffer
PATIENCE_S = 60.0


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[tuple[HttpServer, tuple[str, int]]]:
    def short(_: object) -> PlainTextResponse:
        return PlainTextResponse("ok")

    def long(_: object) -> PlainTextResponse:
        return PlainTextResponse(bytes(LONG_BYTES))

    def peer(request: Request) -> PlainTextResponse:
        return PlainTextResponse(request.client.host if request.client else "")

    routes = [Route("/", short), Route("/long", long), Route("/peer", peer)]
    server = HttpServer(Starlette(routes=routes), "127.0.0.1", 0, **options)
    address = await server.start()
    try:
        yield server, address
    finally:
        async with asyncio.timeout(PATIENCE_S):
            await server.stop()


async def ask(address: tuple[str, int], tls: ssl.SSLContext | None = None) -> bytes:
    """The status line of a GET."""
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection(*address, ssl=tls)
        writer.write(GET)
        line = await reader.readline()
        writer.close()
        return line.strip()


def received(client: socket.socket) -> bytes | None:
    """What has arrived; empty when the connection is closed, None when it is open."""
    client.setblocking(False)
    try:
        return client.recv(12)
    except BlockingIOError:
        return None
    except ConnectionError:
        return b""


def is_closed(client: socket.socket) -> bool:
    return received(client) == b""


@in_loop
async def test_peer_is_the_connections_whatever_a_header_says() -> None:
    async with serving() as (_, (host, port)), httpx.AsyncClient() as client:
        answer = await client.get(f"http://{host}:{port}/peer", headers={"X-Forwarded-For": "192.0.2.1"})
        assert answer.text == "127.0.0.1"


@in_loop
async def test_idle_connections_keep_nobody_out() -> None:
    async with serving(max_connections=10) as (_, address):
        with ExitStack() as stack:
            idle = [stack.enter_context(closing(socket.create_connection(address))) for _ in range(30)]
            await until(lambda: sum(map(is_closed, idle)) == 20)
            assert [await ask(address) for _ in range(3)] == [b"HTTP/1.1 200 OK"] * 3
            assert not is_closed(idle[-1])  # the oldest are closed first


@in_loop
async def test_peers_that_do_not_send_or_read_are_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_CHECK_S", 0.01)
    async with serving(peer_s=0.05) as (server, address):
        for sent in (b"", b"GET / HTTP/1.1\r\nHost:"):
            with closing(socket.create_connection(address)) as client:
                client.sendall(sent)
                await until(lambda: is_closed(client))
        with closing(socket.create_connection(address)) as client:
            client.sendall(LONG)
            await until(lambda: bool(received(client)))
            await until(lambda: not server.server_state.connections)
        assert await ask(address) == b"HTTP/1.1 200 OK"


@in_loop
async def test_stop_does_not_wait_for_a_peer_that_never_reads(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(grace_s=0.1) as (server, address):
        client = socket.create_connection(address)
        client.sendall(LONG)
        connections = server.server_state.connections
        await until(lambda: any(isinstance(one, H11Protocol) and one.flow.write_paused for one in connections))
    client.close()
    assert "Traceback" not in caplog.text


@in_loop
async def test_tls_handshakes_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """uvicorn's own server held as many as there are file descriptors, for a minute each."""
    monkeypatch.setattr(http, "_HANDSHAKE_S", 3600.0)  # only the limit closes them
    authority = CertificateAuthority(tmp_path)
    certificate, key = authority.issue("server")
    client = ssl.create_default_context(cafile=authority.ca)
    async with serving(max_connections=8, options={"ssl_certfile": certificate, "ssl_keyfile": key}) as (_, address):
        assert await ask(address, client) == b"HTTP/1.1 200 OK"
        with ExitStack() as stack:
            silent = [stack.enter_context(closing(socket.create_connection(address))) for _ in range(30)]
            await until(lambda: sum(map(is_closed, silent)) >= 24)  # six of eight may be of one address
        for _ in range(20):  # more than the limit: handshakes that have ended do not count
            assert await answered(address, client) == b"HTTP/1.1 200 OK"


async def answered(address: tuple[str, int], tls: ssl.SSLContext) -> bytes:
    """As `ask`, again while the server still closes the connections of others."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(OSError):
                return await ask(address, tls)
            await asyncio.sleep(0.05)


@in_loop
async def test_unfinished_tls_handshake_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_HANDSHAKE_S", -4.9)  # HandshakeServer adds five seconds
    certificate, key = CertificateAuthority(tmp_path).issue("server")
    async with serving(options={"ssl_certfile": certificate, "ssl_keyfile": key}) as (_, address):
        for sent in (b"", b"\x16\x03\x01"):
            with closing(socket.create_connection(address)) as client:
                client.sendall(sent)
                await until(lambda: is_closed(client))


@in_loop
async def test_invalid_requests_are_logged_sparsely(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "uvicorn.error"):
        async with serving() as (_, address):
            for _ in range(200):
                with closing(socket.create_connection(address)) as client:
                    client.sendall(b"\x16\x03\r\n\r\n")
                    await until(lambda: received(client) == b"HTTP/1.1 400")
    assert 1 <= len(caplog.records) <= 10
