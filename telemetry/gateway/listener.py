"""One listener of a gateway: an address, a security protocol and advertised names of its own; all else is shared.

With TLS, each connection counts towards the limits on connections, and is timed, from its first moment. An event loop's
own TLS server calls a protocol only after the handshake, so that connections which never begin one are not seen: a peer
could hold as many of them as there are file descriptors.
"""

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias, cast

import structlog

from exporters.listening_socket import BACKLOG, end_of
from quota_metrics.kafka.cluster import Node
from quota_metrics.kafka.primitives import ProtocolError
from telemetry.gateway.broker_ports import BrokerPorts, ListeningServer, PortOptions
from telemetry.gateway.client_connection import ClientConnection, ListenerContext, SharedContext, TimedConnection
from telemetry.gateway.connection_limits import Admission, Reason
from telemetry.gateway.networks import Network, is_in
from telemetry.gateway.security.listener_security import DirectSslObject, ListenerSecurity
from telemetry.wire.proxy_protocol import bytes_wanted, parse_header

log = structlog.get_logger(__name__)

_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_ACCEPT_AGAIN_S = 1.0
_ACCEPTS_AT_ONCE = 100  # then others get their turn


@dataclass(frozen=True, slots=True)
class ListenerOptions:
    """Where a listener is, what it demands of its clients, and the name that it sends them to.

    `advertised_host`: None stands for the address at which a client reached the listener. Connections from the networks
    `proxies` begin with a header of the PROXY protocol, version `proxy_version`.
    """

    host: str
    port: int
    advertised_host: str | None = None
    security: ListenerSecurity = field(default_factory=ListenerSecurity)
    ports: PortOptions = field(default_factory=PortOptions)
    proxies: tuple[Network, ...] = ()
    proxy_version: int = 2


class Listener(ListenerContext):
    """Accepts clients at its own ports and sends them to these."""

    def __init__(self, shared: SharedContext, options: ListenerOptions) -> None:
        self.shared = shared
        self.advertised_host = options.advertised_host
        self.security = options.security
        self._options = options
        self.ports = BrokerPorts(options.host, options.port, self._accept, options.ports)

    async def open(self, nodes: Iterable[Node]) -> None:
        """Raises OSError, which names the address."""
        try:
            await self.ports.open(nodes)
        except OSError as exc:
            raise OSError(f"{self._options.host}:{self._options.port}: {exc.strerror or exc}") from exc

    async def _accept(self, listener: socket.socket, node_id: int) -> ListeningServer:
        def serve(peer: tuple[str, int] | None = None) -> asyncio.Protocol:
            return cast(asyncio.Protocol, ClientConnection(self, node_id, peer))

        tls, proxies = self.security.tls, self._options.proxies
        if tls is None and not proxies:
            return await asyncio.get_running_loop().create_server(serve, sock=listener, backlog=BACKLOG)
        return HandshakeServer(listener, tls, self.shared.admission, serve, proxies, self._options.proxy_version)


Serve: TypeAlias = Callable[..., asyncio.Protocol]  # gets the address that a proxy reports, if it does


@dataclass(eq=False)
class HandshakeServer:
    """Accepts connections of one listening socket that begin with a TLS handshake, or with a PROXY protocol header.

    Only connections from `proxies` have that header. `serve` makes the protocol of a connection after its handshake.
    """

    listener: socket.socket
    context: ssl.SSLContext | None
    admission: Admission[TimedConnection]
    serve: Serve
    proxies: tuple[Network, ...] = ()
    proxy_version: int = 2

    def __post_init__(self) -> None:
        self._handshakes: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._paused: asyncio.TimerHandle | None = None
        if self.context is not None:
            self.context.sslobject_class = DirectSslObject
        self._listen()

    def close(self) -> None:
        """Stops accepting and ends the handshakes; other connections go on."""
        if self._paused is not None:
            self._paused.cancel()
        self._loop.remove_reader(self.listener)
        self.listener.close()
        for task in self._handshakes:
            task.cancel()

    async def wait_closed(self) -> None:
        """Returns when the handshakes have ended, after `close`."""
        await asyncio.gather(*self._handshakes, return_exceptions=True)

    def _listen(self) -> None:
        self._paused = None
        self._loop.add_reader(self.listener, self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                accepted, address = self.listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as exc:
                if exc.errno not in _OUT_OF_RESOURCES:
                    raise
                log.error("cannot accept connections", error=str(exc))
                self._loop.remove_reader(self.listener)
                self._paused = self._loop.call_later(_ACCEPT_AGAIN_S, self._listen)
                return
            peer = end_of(address)
            if self.admission.admit(peer[0]) is not None:
                accepted.close()
                continue
            accepted.setblocking(False)
            task = self._loop.create_task(self._handshake(accepted, peer))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _handshake(self, accepted: socket.socket, address: tuple[str, int]) -> None:
        handshake = _Handshake(self.admission, address[0], self.serve, asyncio.current_task())
        self.admission.handshake_began(handshake, self._loop.time())
        timeout_s = self.admission.limits.handshake_timeout_s + 5  # `Admission.overdue` ends it before
        timeout = {"ssl_handshake_timeout": timeout_s} if self.context else {}
        duplicate = accepted
        try:
            duplicate = accepted.dup()  # the event loop closes the first one before it reports an error
            if self.proxies and is_in(address[0], self.proxies):
                header = b""  # and nothing after it
                while wanted := bytes_wanted(header, self.proxy_version):
                    if not (data := await self._loop.sock_recv(accepted, wanted)):
                        raise ProtocolError("closed before its PROXY protocol header was complete")  # health checks do
                    header += data
                handshake.proxied = parse_header(header)
            await self._loop.connect_accepted_socket(lambda: handshake, accepted, ssl=self.context, **timeout)
        except ProtocolError as exc:
            self.admission.refused[Reason.PROXY_HEADER] += 1
            log.debug("connection of a proxy refused", reason=str(exc), peer=address)
            accepted.close()
        except OSError as exc:  # ssl.SSLError is one: no TLS, no common version, or the peer has left
            self.admission.closed[Reason.TLS_HANDSHAKE] += 1
            with contextlib.suppress(OSError):
                duplicate.send(getattr(exc, "alert", b""))  # tells why; else it seems a broken network
            accepted.close()
        except asyncio.CancelledError:
            accepted.close()
        finally:
            duplicate.close()
            handshake.ended()


@dataclass(eq=False)
class _Handshake(asyncio.Protocol, TimedConnection):
    """A connection during its handshake. Then the protocol that `serve` makes takes its place and is admitted anew."""

    admission: Admission[TimedConnection]
    address: str
    serve: Serve
    task: asyncio.Task[None] | None
    is_admitted: bool = True
    proxied: tuple[str, int] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.ended()
        protocol = self.serve() if self.proxied is None else self.serve(self.proxied)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)

    def ended(self) -> None:
        if self.is_admitted:
            self.is_admitted = False
            self.admission.left(self, self.address)

    def close_for(self, reason: Reason) -> None:
        self.admission.closed[reason] += 1
        self.ended()
        if self.task is not None:
            self.task.cancel()
