"""The upstream connection: the gateway's connection to a broker on behalf of one client."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import cast

from telemetry.gateway.listeners import BrokerNode, allowed_address
from telemetry.gateway.networks import Network
from telemetry.gateway.security.listener_security import ListenerSecurity

WRITE_BUFFER_BYTES = 1 << 20


class UpstreamOwner(ABC):
    """The client connection, as an upstream connection uses it. A full write buffer pauses reading on the other
    side."""

    @abstractmethod
    def upstream_received(self, data: bytes) -> None: ...

    @abstractmethod
    def upstream_lost(self) -> None: ...

    @abstractmethod
    def hold_back(self) -> None:
        """Stops reading from the client."""

    @abstractmethod
    def go_on(self) -> None:
        """Resumes reading from the client, unless something else pauses it."""


class UpstreamConnection(asyncio.Protocol):
    """`full`: the broker does not keep up."""

    def __init__(self, client: UpstreamOwner) -> None:
        self._client = client
        self.full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        self._client.upstream_received(data)

    def write(self, chunks: list[bytes]) -> None:
        self._transport.writelines(chunks)

    def pause_writing(self) -> None:
        self.full = True
        self._client.hold_back()

    def resume_writing(self) -> None:
        self.full = False
        self._client.go_on()

    def hold_back(self) -> None:
        self._transport.pause_reading()

    def go_on(self) -> None:
        self._transport.resume_reading()

    def close(self) -> None:
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.upstream_lost()


async def open_upstream(
    owner: UpstreamOwner, node: BrokerNode, security: ListenerSecurity, principal: str, networks: tuple[Network, ...]
) -> UpstreamConnection:
    """Connects to a broker, whose address has to be in `networks`, for a client with this principal before SASL.

    Raises OSError; UpstreamCertificateError when the principal has no certificate.
    """
    tls = security.upstream(node.host, principal)
    address = await allowed_address(node.host, node.port, networks)
    loop = asyncio.get_running_loop()
    _, upstream = await loop.create_connection(lambda: UpstreamConnection(owner), address, node.port, **tls)
    return upstream
