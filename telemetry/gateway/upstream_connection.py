"""The connection to a broker that belongs to one client: moves bytes between the broker and its owner."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import Final, cast

from mypy_extensions import trait

from quota_metrics.kafka.cluster import Node
from telemetry.gateway.broker_ports import allowed_address
from telemetry.gateway.networks import Network
from telemetry.gateway.security.listener_security import ListenerSecurity

_WRITE_BUFFER_BYTES: Final = 1 << 20


@trait
class StreamProtocol:
    """An asyncio.Protocol without that base, which compiled classes cannot have; pass it with `as_protocol`."""

    def eof_received(self) -> None:
        """The transport closes itself."""

    def streams(self, transport: asyncio.BaseTransport) -> asyncio.Transport:
        """The transport, with the size of the write buffer from which on the other side is not read."""
        stream = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        stream.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        return stream


@trait
class UpstreamOwner(StreamProtocol):
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


class UpstreamConnection(StreamProtocol):
    """`full`: the broker does not keep up."""

    def __init__(self, client: UpstreamOwner) -> None:
        self._client = client
        self.full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = self.streams(transport)

    def data_received(self, data: bytes) -> None:
        self._client.upstream_received(data)

    def pause_writing(self) -> None:
        self.full = True
        self._client.hold_back()

    def resume_writing(self) -> None:
        self.full = False
        self._client.go_on()

    def hold_back(self) -> None:
        self.transport.pause_reading()

    def go_on(self) -> None:
        self.transport.resume_reading()

    def close(self) -> None:
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.upstream_lost()


def as_protocol(owner: StreamProtocol) -> asyncio.Protocol:
    return cast(asyncio.Protocol, owner)


async def open_upstream(
    owner: UpstreamOwner, node: Node, security: ListenerSecurity, principal: str, networks: tuple[Network, ...]
) -> UpstreamConnection:
    """Connects to a broker, whose address has to be in `networks`, for a client with this principal before SASL.

    Raises OSError; UpstreamCertificateError when the principal has no certificate.
    """
    tls = security.upstream(node.host, principal)
    address = await allowed_address(node.host, node.port, networks)
    loop = asyncio.get_running_loop()
    upstream = UpstreamConnection(owner)
    await loop.create_connection(lambda: as_protocol(upstream), address, node.port, **tls)
    return upstream
