"""The sockets of one client: moves bytes between its connection, `ProxiedConnection` and its connection to a broker."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, cast

from mypy_extensions import mypyc_attr, trait

from exporters.listening_socket import at_an_address, end_of, keep_alive
from exporters.model import NO_BROKER, UNKNOWN, Connection
from quota_metrics.kafka.primitives import ProtocolError
from telemetry.gateway.broker_ports import BrokerPorts
from telemetry.gateway.connection import ConnectionLimits, ProxiedConnection
from telemetry.gateway.connection_limits import AddressGate, Admission, AdmissionLimits, GatePass, Reason
from telemetry.gateway.networks import Network, is_in
from telemetry.gateway.responses import LocalAnswer, Observe
from telemetry.gateway.security.client_identity import SaslSession
from telemetry.gateway.security.listener_security import ListenerSecurity
from telemetry.gateway.security.sasl_tokens import TokenOwners
from telemetry.receiver.group_commit import MOST_WAITING, GroupCommit
from telemetry.receiver.telemetry_requests import TelemetryReceiver

_WRITE_BUFFER_BYTES: Final = 1 << 20
_KEEP_ALIVE_SWEEPS: Final = 2
_HUNG_UP: Final[int] = getattr(select, "POLLRDHUP", 0)  # besides POLLHUP and POLLERR, which poll(2) always reports


@mypyc_attr(allow_interpreted_subclasses=True)
class TimedConnection:
    """A connection that must have done something in time."""

    def close_for(self, reason: Reason) -> None:
        """Counts the reason and closes at once."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """Limits of a gateway, and whom it asks. `upstream_networks`: the networks of the brokers; empty means any.
    `most_waiting`: see GroupCommit."""

    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    admission: AdmissionLimits = field(default_factory=AdmissionLimits)
    connect_timeout_s: float = 10.0
    upstream_networks: tuple[Network, ...] = ()
    most_waiting: int | None = MOST_WAITING
    addresses: AddressGate = field(default_factory=AddressGate)
    token_owners: TokenOwners = field(default_factory=TokenOwners)


@mypyc_attr(allow_interpreted_subclasses=True)
class SharedContext:
    """State shared by all client connections of a gateway; see `server.Gateway`."""

    cluster: str
    receiver: TelemetryReceiver
    observe: Observe
    now_ms: Callable[[], int]
    options: GatewayOptions
    local: Callable[[str, int, Connection], Mapping[int, LocalAnswer]] | None
    connections_total: int
    protocol_errors: int
    upstream_failures: int
    commit: GroupCommit
    clients: set[ClientConnection]
    last_lost: asyncio.Event
    admission: Admission[TimedConnection]

    def refused(self, reason: str, peer: object) -> None:
        """Counts and logs a connection that is closed because of what its client sent."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class ListenerContext:
    """State shared by the client connections of one listener; see `listener.Listener`."""

    shared: SharedContext
    advertised_host: str | None
    security: ListenerSecurity
    ports: BrokerPorts


@trait
class StreamProtocol:
    """An asyncio.Protocol without that base, which compiled classes cannot have; pass it with a cast."""

    def eof_received(self) -> None:
        """The transport closes itself."""

    def streams(self, transport: asyncio.BaseTransport) -> asyncio.Transport:
        """The transport, with the size of the write buffer from which on the other side is not read."""
        stream = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        stream.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        return stream


class UpstreamConnection(StreamProtocol):
    """The connection to a broker of one client. `full`: the broker does not keep up."""

    def __init__(self, client: ClientConnection) -> None:
        self._client = client
        self.full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = self.streams(transport)
        keep_alive(transport.get_extra_info("socket"))

    def close(self, timeout_s: float) -> None:
        """Sends what was written before, such as acks=0 produces, unless the broker does not take it in time."""
        self.transport.close()
        if self.transport.get_write_buffer_size():
            asyncio.get_running_loop().call_later(timeout_s, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        self._client.upstream_received(data)

    def pause_writing(self) -> None:
        self.full = True
        self._client.hold_back()

    def resume_writing(self) -> None:
        self.full = False
        self._client.go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.upstream_lost()


class ClientConnection(TimedConnection, StreamProtocol):
    """Owns its upstream. Backpressure: a full write buffer on one side pauses reading on the other."""

    def __init__(self, listener: ListenerContext, node_id: int, peer: tuple[str, int] | None = None) -> None:
        """`peer`: the client's address where a proxy states it; None: that of the connection."""
        self._listener, self._security, self._gateway = listener, listener.security, listener.shared
        self._node_id = node_id
        self._session: ProxiedConnection | None = None
        self._upstream: UpstreamConnection | None = None
        self._early: list[bytes] = []  # bytes received before the upstream was connected
        self._own_address = ("", 0)
        self._proxied = peer
        self._peer: tuple[str, int] | None = None  # None: not admitted
        self._pass = GatePass(self._gateway.options.addresses)
        self.active = True  # bytes have passed in either direction since the last sweep
        self.quiet_sweeps = self._upstream_quiet_sweeps = 0
        self._authenticates = self._draining = self._full = False  # _authenticates: and has not done so yet

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = self.streams(transport)
        self._gateway.connections_total += 1
        connected = self._proxied or self._transport.get_extra_info("peername")
        peer = None if connected is None else end_of(connected)
        if peer is None or self._gateway.admission.admit(peer[0]) is not None:  # None: reset before it was accepted
            self._transport.abort()
            return
        self._peer = peer
        self._own_address = end_of(self._transport.get_extra_info("sockname"))  # a closed transport has none
        self._gateway.clients.add(self)
        try:
            self._principal = self._security.principal(self._transport)
        except ProtocolError as exc:
            self._refuse(exc)
            return
        names = self._security.server_names
        self._node_id = self._listener.ports.node_of(
            self._node_id, lambda: names.get(transport.get_extra_info("ssl_object"))
        )
        if self._gateway.local is not None:
            self._begin(NO_BROKER)
            return
        loop = asyncio.get_running_loop()
        loop.call_soon(self.hold_back)  # uvloop ignores a pause requested in connection_made
        self._connecting = loop.create_task(self._connect())

    async def _connect(self) -> None:
        gateway, ports, loop = self._gateway, self._listener.ports, asyncio.get_running_loop()
        networks, timeout_s = gateway.options.upstream_networks, gateway.options.connect_timeout_s
        for node in ports.candidates(self._node_id):
            assert self._peer is not None
            refusal = await self._pass.enter(self._peer[0], node.id)
            if self not in gateway.clients:  # disconnected in the meantime
                self._pass.leave()
            elif refusal is not None:  # by the quotas on addresses
                reason, delay_ms = refusal
                gateway.admission.refused[reason] += 1
                await asyncio.sleep(delay_ms / 1000)
                self._transport.close()
            if refusal is not None:
                return
            upstream = UpstreamConnection(self)
            try:
                tls = self._security.upstream(node.host, self._principal)
                connect = partial(
                    loop.create_connection, partial(cast, asyncio.Protocol, upstream), port=node.port, **tls
                )
                await at_an_address(node.host, timeout_s, connect, lambda host: not networks or is_in(host, networks))
            except (OSError, TimeoutError, ValueError) as exc:  # ValueError: a host name that IDNA cannot encode
                gateway.upstream_failures += 1
                ports.not_reached(node.id, str(exc) or "timed out")
                if self.has_left():
                    break
                continue
            ports.reached(node.id)
            self._upstream = upstream
            session = self._begin(node.id)
            early, self._early = self._early, []
            for data in early:
                self.data_received(data)
            if self not in gateway.clients:  # disconnected in the meantime; its bytes are still forwarded
                session.closed()
                upstream.close(gateway.admission.limits.last_writes_s)
            else:
                self.go_on()
            return
        self._transport.close()

    def _begin(self, broker_id: int) -> ProxiedConnection:
        assert self._peer is not None
        security = self._security
        address, port = self._peer  # the transport of a client that has left no longer knows them
        facts = Connection(
            cluster=self._gateway.cluster,
            listener=security.name or security.protocol,
            principal=self._principal,
            source_address=address,
            source_port=port,
            software_name=UNKNOWN,
            software_version=UNKNOWN,
            broker_id=broker_id,
        )
        self._authenticates = security.sasl and self in self._gateway.clients  # else it has left
        loop = asyncio.get_running_loop()
        if self._authenticates:  # its time begins when a broker is reached
            self._gateway.admission.handshake_began(self, loop.time())
        local, ports, options = self._gateway.local, self._listener.ports, self._gateway.options
        self._session = ProxiedConnection(
            facts=facts,
            connection_id=f"{address}:{port}-{id(self):x}",
            receiver=self._gateway.receiver,
            address_of=lambda node_id, _host, _port: ports.address_of(node_id, self._advertised_address()[0]),
            observe=self._gateway.observe,
            limits=options.limits,
            local=None if local is None else local(*self._advertised_address(), facts),
            sasl=SaslSession(security.oauth_claim, options.token_owners.owner_of, loop.time) if security.sasl else None,
        )
        return self._session

    def _advertised_address(self) -> tuple[str, int]:
        """The advertised address: the configured one, or the one that this client connected to."""
        host, port = self._own_address
        return self._listener.advertised_host or host, self._listener.ports.advertised(port)

    def data_received(self, data: bytes) -> None:
        session = self._session
        self.active = True
        if session is None:
            self._early.append(data)
            return
        try:
            unfinished = session.from_client(data, self._gateway.now_ms())
        except ProtocolError as exc:
            self._refuse(exc)
            return
        self._pump(session)
        if unfinished:
            admission, number = self._gateway.admission, session.unfinished_request
            if not number:
                admission.finished(self)
            else:
                now_s = asyncio.get_running_loop().time()
                for client in admission.unfinished(self, number, session.held_bytes, now_s):
                    client.close_for(Reason.HELD_BYTES)
        if session.is_crowded:
            self.hold_back()

    def upstream_received(self, data: bytes) -> None:
        session = self._session
        self._upstream_quiet_sweeps = 0
        if session is None:
            return
        try:
            session.from_upstream(data, self._gateway.now_ms())
        except ProtocolError as exc:
            self._refuse(exc)
            return
        self.active = self.active or bool(session.to_client)  # without it may be the response to a keep-alive
        self._pump(session)
        if session.is_crowded:
            self._continue(session)
        if self._authenticates and session.authenticated:
            self._authenticates = False
            self._gateway.admission.handshake_done(self)

    def _flushed(self, ok: bool) -> None:
        session = self._session
        assert session is not None  # its push was flushed
        self._transport.write(session.flushed(ok))
        if session.response_waits or self._draining:
            self.upstream_received(b"")
        if session.is_crowded:
            self._continue(session)

    def _continue(self, session: ProxiedConnection) -> None:
        if session.has_room and not self._draining and not self._transport.is_closing():
            self.data_received(b"")
            if not self._transport.is_closing():
                self.go_on()

    def _refuse(self, exc: ProtocolError) -> None:
        self._gateway.refused(str(exc), self._peer or self._transport.get_extra_info("peername"))
        if self._session is not None:
            self._pump(self._session)  # flushes the pushes accepted so far
        self.abort()

    def _pump(self, session: ProxiedConnection) -> None:
        if session.to_upstream and self._upstream is not None:
            self._upstream.transport.write(session.to_upstream)
            session.to_upstream = b""
        if session.to_client:
            self._transport.write(session.to_client)
            session.to_client = b""
        if session.unflushed:
            session.unflushed = False
            self._gateway.commit.soon(self._flushed)  # after earlier answers are written: it may call `_flushed`
        if self._draining and session.idle:
            self._transport.close()

    def drain(self) -> None:
        """Stops reading requests; closes after those in flight are answered."""
        self._draining = True
        self.hold_back()
        if self._session is None or self._session.idle:
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    @property
    def waits_for_broker(self) -> bool:
        return self._session is None or not self._session.idle

    def has_left(self) -> bool:
        """Also when its end does not arrive, because its bytes before that are not read."""
        if self not in self._gateway.clients:
            return True
        if self._transport.is_reading():
            return False
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket"), _HUNG_UP)
        return bool(poll.poll(0))

    def close_for(self, reason: Reason) -> None:
        self._gateway.admission.closed[reason] += 1
        self._gateway.admission.finished(self)  # frees its bytes before the next request is processed
        if self._session is not None:
            self._session.discard()
        self.abort()

    def keep_upstream_alive(self) -> None:
        """Called at each sweep."""
        self._upstream_quiet_sweeps += 1
        if self._upstream_quiet_sweeps >= _KEEP_ALIVE_SWEEPS and self._session is not None:
            self._session.keep_alive()
            self._pump(self._session)

    def hold_back(self) -> None:
        """Stops reading while no upstream is connected, a side does not keep up, or too many requests are in flight."""
        if self._session is None or self._draining or self._is_overfull():
            self._transport.pause_reading()

    def go_on(self) -> None:
        if not self._draining and not self._is_overfull():
            self._transport.resume_reading()

    def _is_overfull(self) -> bool:
        is_crowded = self._session is not None and self._session.is_crowded
        return is_crowded or self._full or (self._upstream is not None and self._upstream.full)

    def pause_writing(self) -> None:
        """The client does not read its responses: stops producing them, including local answers."""
        self._full = True
        self.hold_back()
        if self._upstream is not None:
            self._upstream.transport.pause_reading()

    def resume_writing(self) -> None:
        self._full = False
        self.go_on()
        if self._upstream is not None:
            self._upstream.transport.resume_reading()

    def upstream_lost(self) -> None:
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._peer is None:
            return
        self._gateway.admission.left(self, self._peer[0])
        self._pass.leave()
        self._gateway.clients.discard(self)
        if not self._gateway.clients:
            self._gateway.last_lost.set()
        if self._session is not None:
            self._session.closed()
        if self._upstream is not None:
            self._upstream.close(self._gateway.admission.limits.last_writes_s)
