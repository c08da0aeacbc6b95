"""bootstrap.servers: HOST:PORT[,HOST:PORT], with a protocol before a host where somebody writes one (SASL_SSL://host:9092).

Blanks and empty parts are left out, as Java and librdkafka do. The port is never left out: librdkafka would take 9092.
"""

import ipaddress
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
# Java's Utils.HOST_PORT_PATTERN, with hosts that are no ASCII, and with librdkafka's path behind an URL.
_SERVER: Final = re.compile(
    r"(?:(?P<protocol>[0-9a-zA-Z\-%._]+)://)?(?:\[(?P<v6>[^\[\]]+)\]|(?P<host>[^\s/\[\]@]+)):(?P<port>[0-9]+)"
    r"(?(protocol)(?:/.*)?)"
)


class BootstrapError(ValueError):
    """A part of the text is no HOST:PORT, or contradicts the client's properties."""


class BootstrapServer(NamedTuple):
    """`protocol` is empty, one of Kafka's, or the name of a listener, which says nothing."""

    host: str
    port: int
    protocol: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.protocol}://{host}:{self.port}" if self.protocol else f"{host}:{self.port}"


def parse_bootstrap_servers(text: str) -> list[BootstrapServer]:
    """Raises BootstrapError."""
    return [parse_bootstrap_server(part) for part in split_servers(text)]


def split_servers(text: str) -> list[str]:
    """The parts of the text, at least one: an empty variable of a script is not "no brokers"."""
    return [part.strip() for part in text.split(",") if part.strip()] or [text.strip()]


def parse_bootstrap_server(text: str) -> BootstrapServer:
    """Raises BootstrapError."""
    match = _SERVER.fullmatch(text)
    if match:
        host, port = match["v6"] or match["host"], int(match["port"][:20])
        with suppress(UnicodeError, ValueError):
            if ":" in host:
                ipaddress.IPv6Address(host)
            if 0 < port < 65_536 and host.encode("idna" if ":" not in host else "ascii"):
                return BootstrapServer(host, port, (match["protocol"] or "").upper())
    raise BootstrapError(f"{text!r} is not HOST:PORT")


def check_protocol(servers: Iterable[BootstrapServer], protocol: str) -> None:
    """`protocol`: security.protocol, with which we connect. Raises BootstrapError when a server names another one."""
    for server in servers:
        if server.protocol in PROTOCOLS and server.protocol != protocol:
            raise BootstrapError(
                f"{server} contradicts security.protocol={protocol}: set security.protocol={server.protocol} in the"
                " client properties (--command-config, command_config), or leave the protocol out of the address"
            )
