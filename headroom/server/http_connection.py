"""A connection to an HTTP endpoint: uvicorn's HTTP/1.1, with limits on the number of connections and on their time."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from exporters.listening_socket import end_of

_CHECK_S = 5.0
_turns = itertools.count()  # times may be equal


class LimitedConnection(H11Protocol):
    """Closes a connection whose peer takes `peer_s` to send a request, or to read a response.

    At more than `max_connections`, the one that has waited longest for its peer is closed: idle connections cannot keep
    out a caller that sends a request.
    """

    def __init__(self, max_connections: int, peer_s: float, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._max_connections = max_connections
        self._peer_s = peer_s
        self._waiting_since_s: float | None = None  # None: the application is busy with a request
        self._waited_for: object = None  # the request after which it waits
        self._timer: asyncio.TimerHandle | None = None
        self._turn = next(_turns)  # lower: its last response, or its opening, is longer ago

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        super().connection_made(transport)
        self.client = self.client and end_of(self.client)
        self._check()
        if len(self.connections) > self._max_connections:
            waiting = [
                connection
                for connection in self.connections
                if isinstance(connection, LimitedConnection) and connection.waits_for_peer()
            ]
            # This one, if the application is busy with all others.
            longest = min(waiting, key=lambda connection: connection._turn, default=self)
            longest.transport.abort()
            self.connections.discard(longest)  # at once, so that the next one does not choose it again

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._turn = next(_turns)
        super().on_response_complete()

    def waits_for_peer(self) -> bool:
        """Whether the peer has to send or to read before anything happens here."""
        cycle = self.cycle
        return cycle is None or cycle.response_complete or cycle.more_body or self.flow.write_paused

    def _check(self) -> None:
        """Aborts a connection that has waited too long. A peer that reads a little at a time has to hurry, too."""
        now_s = self.loop.time()
        if not self.waits_for_peer():
            self._waiting_since_s = None
        elif self._waiting_since_s is None or self._waited_for is not self.cycle:
            self._waiting_since_s, self._waited_for = now_s, self.cycle
        elif now_s - self._waiting_since_s >= self._peer_s:
            self.transport.abort()
            return
        self._timer = self.loop.call_later(_CHECK_S, self._check)
