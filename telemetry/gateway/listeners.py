"""The addresses the gateway is found at: one to bootstrap from, one per broker, opened as brokers become known."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import structlog

log = structlog.get_logger(__name__)

BOOTSTRAP = -1  # the listener that leads to any broker
_BACKLOG = 1024


@dataclass(frozen=True, slots=True)
class BrokerNode:
    """A broker as the cluster advertises it."""

    node_id: int
    host: str
    port: int


class Listeners:
    """The listening sockets in front of one cluster.

    The listener to broker N has the port of the bootstrap listener + 1 + N, so that addresses survive a restart;
    where that
    port is taken, or the bootstrap port was chosen by the system, any free port.
    `serve` makes the protocol of a connection that came through the listener to a broker id (or BOOTSTRAP).

    Several processes may listen at the same ports (SO_REUSEPORT), which they all have to know alike: one is `shared`
    and opens listeners, `opened` is called after each; the others `ask` it for listeners that they lack and `follow`
    it. Until
    then they send clients to the bootstrap listener.
    """

    def __init__(
        self,
        *,
        host: str,
        port: int,
        serve: Callable[[int], asyncio.Protocol],
        shared: bool = False,
        ask: Callable[[BrokerNode], None] | None = None,
    ) -> None:
        self.opened: Callable[[], None] = _nobody_cares
        self._host = host
        self._port = port
        self._serve = serve
        self._shared = shared
        self._ask = ask
        self._asked: set[int] = set()
        self._predictable = port != 0
        self._nodes: dict[int, BrokerNode] = {}
        self._ports: dict[int, int] = {}
        self._servers: list[asyncio.Server] = []
        self._opening: set[asyncio.Task[None]] = set()
        self._turn = itertools.count()
        self._unreachable: set[int] = set()

    def __iter__(self) -> Iterator[tuple[BrokerNode, int]]:
        """The brokers that have a listener, and its port."""
        return ((self._nodes[node_id], port) for node_id, port in self._ports.items())

    async def open(self, nodes: Iterable[BrokerNode]) -> tuple[str, int]:
        """Opens the bootstrap listener and one to each node; the bootstrap address. Raises OSError: the port is
        taken."""
        listener = self._listen(self._port)
        self._port = listener.getsockname()[1]
        for node in nodes:
            self.port_of(node.node_id, node.host, node.port)
        await self._accept(BOOTSTRAP, listener)
        await asyncio.gather(*self._opening)
        return self._host, self._port

    def port_of(self, node_id: int, host: str, port: int) -> int:
        """The port of the listener to a broker, opened when it is new. Called whenever a response names a broker."""
        node = self._nodes[node_id] = BrokerNode(node_id, host, port)
        if node_id not in self._ports:
            if self._ask is not None:
                if node_id not in self._asked:
                    self._asked.add(node_id)
                    self._ask(node)
                return self._port
            self._begin(node_id, self._broker_listener(node_id))
            log.info("listener opened", broker_id=node_id, port=self._ports[node_id])
            self.opened()
        return self._ports[node_id]

    async def follow(self, listeners: Iterable[tuple[BrokerNode, int]]) -> None:
        """Opens the listeners that another process has opened. Raises OSError, after all others: a port is not to be
        had.

        Such a listener is not asked for once more: it is there, and to be followed again.
        """
        fault = None
        for node, port in listeners:
            self._nodes.setdefault(node.node_id, node)  # what a response said is newer
            if node.node_id not in self._ports:
                try:
                    self._begin(node.node_id, self._listen(port))
                except OSError as exc:
                    fault = exc
        await asyncio.gather(*self._opening)
        if fault is not None:
            raise fault

    def candidates(self, node_id: int) -> list[BrokerNode]:
        """The brokers that a connection through this listener may lead to, in the order to try."""
        if node_id != BOOTSTRAP:
            return [self._nodes[node_id]]
        nodes = sorted(self._nodes.values(), key=lambda node: node.node_id)
        first = next(self._turn) % max(len(nodes), 1)
        return nodes[first:] + nodes[:first]

    def reached(self, node_id: int) -> None:
        """A broker took a connection."""
        if node_id in self._unreachable:
            self._unreachable.discard(node_id)
            log.info("broker is reached again", broker_id=node_id)

    def not_reached(self, node_id: int, reason: str) -> None:
        """A broker took none. Logged once per outage: all its clients come at once, and again."""
        if node_id not in self._unreachable:
            self._unreachable.add(node_id)
            log.warning("cannot reach broker", broker_id=node_id, error=reason)

    def close(self) -> None:
        """Stops accepting."""
        for task in self._opening:
            task.cancel()
        for server in self._servers:
            server.close()

    def _broker_listener(self, node_id: int) -> socket.socket:
        wanted = self._port + 1 + node_id
        if self._predictable and wanted <= 65_535:
            try:
                return self._listen(wanted)
            except OSError as exc:
                log.warning("listener takes a free port", broker_id=node_id, wanted=wanted, error=str(exc))
        return self._listen(0)

    def _begin(self, node_id: int, listener: socket.socket) -> None:
        self._ports[node_id] = listener.getsockname()[1]
        task = asyncio.get_running_loop().create_task(self._accept(node_id, listener))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def _listen(self, port: int) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        follows = self._ask is not None
        listener = socket.create_server((self._host, port), backlog=_BACKLOG, family=family, reuse_port=follows)
        if self._shared:  # not before it is bound: a port that somebody else has, even shared, is refused
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        return listener

    async def _accept(self, node_id: int, listener: socket.socket) -> None:
        listener.setblocking(False)
        loop = asyncio.get_running_loop()
        self._servers.append(await loop.create_server(lambda: self._serve(node_id), sock=listener))


def _nobody_cares() -> None:
    pass
