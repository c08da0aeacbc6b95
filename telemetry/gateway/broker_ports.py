"""The listening sockets of one listener: one for bootstrapping, and one per broker unless TLS server names are used.

With server names all brokers share one port, and the host name that a client asks for (SNI) tells which is meant.
"""

import asyncio
import itertools
import re
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from exporters.listening_socket import listening_socket
from quota_metrics.kafka.cluster import Node

_ID = "{id}"
_HOST = re.compile(r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*", re.IGNORECASE)
_MAX_DIGITS = 10
log = structlog.get_logger(__name__)

BOOTSTRAP = -1  # the listener that connects to any broker
_FORGET_AFTER = 3  # consecutive readings of the metadata without a broker: a restarting one returns soon
_MAX_BROKERS = 2_000
_MAX_UNKNOWN = 1_000


class BrokerNamesError(ValueError):
    """The text is no pattern of host names."""


class BrokerNames:
    """The host names of brokers behind one port.

    `pattern`: `broker-{id}.gateway.example`, where `{id}` stands for the broker's node id, with `:PORT` when clients
    connect to another port than the listener's. Raises BrokerNamesError.
    """

    def __init__(self, pattern: str) -> None:
        host, _, port = pattern.partition(":")
        if host.count(_ID) != 1 or not _HOST.fullmatch(host.replace(_ID, "0")):
            raise BrokerNamesError(f"{pattern!r} is no host name with one {_ID} in it, as broker-{_ID}.gateway.example")
        if port and not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65_536):
            raise BrokerNamesError(f"{pattern!r} has no port behind the colon")
        self._host = host
        self._port = int(port) if port else None
        before, after = host.split(_ID)
        self._name = re.compile(f"{re.escape(before)}([0-9]{{1,{_MAX_DIGITS}}}){re.escape(after)}", re.IGNORECASE)

    def address_of(self, node_id: int, port: int) -> tuple[str, int]:
        """Host and port to advertise for a broker; `port` is the listener's."""
        return self._host.replace(_ID, str(node_id)), self._port or port

    def node_id(self, server_name: str | None) -> int | None:
        """The broker that a client asks for; None: a name of no broker, or none at all."""
        match = self._name.fullmatch(server_name) if server_name else None
        return int(match[1]) if match else None


class ListeningServer(Protocol):
    """An asyncio.Server, or a HandshakeServer."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class PortOptions:
    """Which ports the brokers of a listener get.

    `reserved`: ports that no broker gets. `names`: all brokers share the bootstrap port, and the TLS server name
    identifies the broker; any other name is the bootstrap's. `fallback`: where connections to the bootstrap port lead
    when no broker is reachable. `advertised_port`: where clients find the bootstrap port, when something between leads
    from other ports to ours; the brokers' ports follow it as ours follow the bootstrap port. `unknown` is called when a
    response names a broker without a port.

    Several processes may share the ports (SO_REUSEPORT): one is `shared` and opens them; the others have `follows`
    and open the ports that are passed to `follow`.
    """

    shared: bool = False
    follows: bool = False
    reserved: Collection[int] = ()
    fallback: Sequence[Node] = ()
    names: BrokerNames | None = None
    advertised_port: int | None = None
    unknown: Callable[[], None] = lambda: None


class BrokerPorts:
    """The listeners of the brokers.

    Only `update` opens and closes ports, from metadata that Headroom itself fetched. When a response to a client names
    an unknown broker, its address becomes the bootstrap port, and `unknown` is called, which fetches metadata.

    The port of broker N is the bootstrap port + 1 + N, so that addresses survive a restart. If that port is taken or
    reserved, or the system chose the bootstrap port, any free port is used; with `advertised_port` none is, because
    nothing would lead to it. `listen` accepts the connections of a bound socket, for a broker id (or BOOTSTRAP).
    """

    def __init__(
        self,
        host: str,
        port: int,
        listen: Callable[[socket.socket, int], Awaitable[ListeningServer]],
        options: PortOptions = PortOptions(),
    ) -> None:
        self.unknown = options.unknown
        self._host = host
        self._port = port
        self._listen_on = listen
        self._options = options
        self._names = options.names
        self._predictable = port != 0
        self._nodes: dict[int, Node] = {}
        self._ports: dict[int, int] = {}
        self._missing: dict[int, int] = {}  # readings in a row without this broker
        self._reported: set[int] = set()  # unknown brokers since the last reading
        self._servers: dict[int, ListeningServer] = {}
        self._opening: dict[int, asyncio.Task[None]] = {}
        self._turn = itertools.count()
        self._unreachable: set[int] = set()

    def __iter__(self) -> Iterator[tuple[Node, int]]:
        """The brokers that have a port, and it."""
        return ((self._nodes[node_id], port) for node_id, port in self._ports.items())

    async def open(self, nodes: Iterable[Node]) -> tuple[str, int]:
        """Opens the bootstrap listener and one per node. Returns the bootstrap address.

        Raises OSError when its port is taken.
        """
        listener = self._listen(self._port)
        self._port = listener.getsockname()[1]
        self.update(nodes)
        await self._accept(BOOTSTRAP, listener)
        await asyncio.gather(*self._opening.values())
        return self._host, self._port

    def update(self, nodes: Iterable[Node]) -> None:
        """Applies the brokers of the cluster's metadata; an empty list is ignored.

        A new broker gets a listener, which closes when the broker has been missing for some readings.
        """
        named = {node.id: node for node in itertools.islice(nodes, _MAX_BROKERS)}
        if not named:
            return
        for node_id in [*self._ports]:
            self._missing[node_id] = 0 if node_id in named else self._missing.get(node_id, 0) + 1
            if self._missing[node_id] >= _FORGET_AFTER:
                self._forget(node_id)
        for node_id, node in named.items():
            if self._names is not None:
                self._ports[node_id] = self._port
            elif node_id not in self._ports:
                try:
                    self._begin(node_id, self._listen_for(node_id))
                except OSError as exc:
                    log.error("cannot open a listener", broker_id=node_id, error=str(exc))
                    continue
                log.info("listener opened", broker_id=node_id, port=self._ports[node_id])
            self._nodes[node_id] = node
        self._reported.clear()

    def address_of(self, node_id: int, host: str) -> tuple[str, int]:
        """Host and port to advertise for a broker in a response; `host`: the one at which the client reached us."""
        port = self.advertised(self.port_of(node_id))
        return (host, port) if self._names is None else self._names.address_of(node_id, port)

    def advertised(self, port: int) -> int:
        """The port at which clients find one of our ports."""
        bootstrap = self._options.advertised_port
        return port if bootstrap is None else bootstrap + port - self._port

    def node_of(self, node_id: int, server_name: Callable[[], str | None]) -> int:
        """The broker that a connection is for, or BOOTSTRAP. `node_id`: that of the listener that accepted it."""
        if self._names is None:
            return node_id
        named = self._names.node_id(server_name())
        return BOOTSTRAP if named is None else named

    def port_of(self, node_id: int) -> int:
        """The port for a broker in a response: that of its listener, otherwise that of the bootstrap listener."""
        port = self._ports.get(node_id)
        if port is not None:
            return port
        if node_id not in self._reported and len(self._reported) < _MAX_UNKNOWN:
            self._reported.add(node_id)
            self.unknown()
        return self._port

    async def follow(self, listeners: Iterable[tuple[Node, int]]) -> None:
        """Opens the listeners that another process has opened, closes all others. If a port cannot be bound, raises
        OSError after the others are done; the caller should retry."""
        wanted = {node.id: (node, port) for node, port in listeners}
        for node_id in [*self._ports]:
            if node_id not in wanted or wanted[node_id][1] != self._ports[node_id]:
                self._forget(node_id)
        fault = None
        for node_id, (node, port) in wanted.items():
            self._nodes[node_id] = node
            if self._names is not None:
                self._ports[node_id] = self._port
            elif node_id not in self._ports:
                try:
                    self._begin(node_id, self._listen(port))
                except OSError as exc:
                    fault = exc
        self._reported.clear()
        await asyncio.gather(*self._opening.values())
        if fault is not None:
            raise fault

    def candidates(self, node_id: int) -> list[Node]:
        """The brokers that a connection to this listener may lead to, in the order to try: unreachable ones last."""
        if node_id != BOOTSTRAP:
            return [self._nodes[node_id]] if node_id in self._nodes else []
        nodes = sorted(self._nodes.values(), key=lambda node: node.id)
        first = next(self._turn) % max(len(nodes), 1)
        addresses = {(node.host, node.port) for node in nodes}
        fallback = (node for node in self._options.fallback if (node.host, node.port) not in addresses)
        in_turn = nodes[first:] + nodes[:first]
        return [*sorted(in_turn, key=lambda node: node.id in self._unreachable), *fallback]

    def reached(self, node_id: int) -> None:
        if node_id in self._unreachable:
            self._unreachable.discard(node_id)
            log.info("broker is reachable again", broker_id=node_id)

    def not_reached(self, node_id: int, reason: str) -> None:
        """Reports that a broker refused a connection; logs once per outage, because all its clients retry."""
        if node_id not in self._unreachable:
            self._unreachable.add(node_id)
            log.warning("cannot reach broker", broker_id=node_id, error=reason)

    def close(self) -> None:
        for task in self._opening.values():
            task.cancel()
        for server in self._servers.values():
            server.close()

    def _forget(self, node_id: int) -> None:
        log.info("listener closed", broker_id=node_id, port=self._ports.pop(node_id))
        self._nodes.pop(node_id, None)
        self._missing.pop(node_id, None)
        self._unreachable.discard(node_id)
        if task := self._opening.pop(node_id, None):
            task.cancel()
        if server := self._servers.pop(node_id, None):
            server.close()

    def _listen_for(self, node_id: int) -> socket.socket:
        """The listening socket of a broker. Raises OSError."""
        wanted = self._port + 1 + node_id
        if self._options.advertised_port is not None:
            if max(wanted, self.advertised(wanted)) > 65_535 or wanted in self._options.reserved:
                raise OSError(f"port {wanted}, advertised as {self.advertised(wanted)}, cannot be the broker's")
            return self._listen(wanted)
        if self._predictable and 0 < wanted <= 65_535 and wanted not in self._options.reserved:
            try:
                return self._listen(wanted)
            except OSError as exc:
                log.warning("listener uses a free port", broker_id=node_id, wanted=wanted, error=str(exc))
        while (listener := self._listen(0)).getsockname()[1] in self._options.reserved:
            listener.close()  # the system's next choice is another one
        return listener

    def _begin(self, node_id: int, listener: socket.socket) -> None:
        self._ports[node_id] = listener.getsockname()[1]
        task = asyncio.get_running_loop().create_task(self._accept(node_id, listener))
        self._opening[node_id] = task

        def forget(done: asyncio.Task[None]) -> None:
            if self._opening.get(node_id) is done:
                del self._opening[node_id]

        task.add_done_callback(forget)

    def _listen(self, port: int) -> socket.socket:
        listener = listening_socket(self._host, port, reuse_port=self._options.follows)
        if self._options.shared:  # set after binding, so that binding fails for a port in use, even a shared one
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        return listener

    async def _accept(self, node_id: int, listener: socket.socket) -> None:
        listener.setblocking(False)
        try:
            self._servers[node_id] = await self._listen_on(listener, node_id)
        except asyncio.CancelledError:
            listener.close()
            raise
