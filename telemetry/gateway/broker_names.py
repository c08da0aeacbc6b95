"""Maps the host name that a TLS client asks for (SNI) to a broker, at one port for all brokers. Sans-I/O."""

from __future__ import annotations

import re

_ID = "{id}"
_HOST = re.compile(r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*", re.IGNORECASE)
_MAX_DIGITS = 10


class BrokerNamesError(ValueError):
    """The text is no pattern of host names."""


class BrokerNames:
    """`pattern`: `broker-{id}.gateway.example`, where `{id}` stands for the broker's node id; with `:PORT` when clients
    connect to another port than the listener's. Raises BrokerNamesError."""

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
