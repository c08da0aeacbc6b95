"""IP networks, and the administrators of a stand-alone sink. Sans-I/O."""

import ipaddress
from collections.abc import Iterable
from typing import TypeAlias

from exporters.identity import parsed_address
from exporters.model import Connection

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

LOOPBACK = ("127.0.0.0/8", "::1/128")


def networks_of(texts: Iterable[str]) -> tuple[Network, ...]:
    """Networks in CIDR notation, or single addresses. Raises ValueError."""
    return tuple(ipaddress.ip_network(text.strip(), strict=False) for text in texts)


def is_in(address: str, networks: Iterable[Network]) -> bool:
    """Whether an address is in one of them; an IPv4-mapped IPv6 address counts as its IPv4 address."""
    parsed = parsed_address(address)
    return any(parsed in network for network in networks)


class Administrators:
    """The clients that may alter the subscriptions of a stand-alone sink: by network, and by principal."""

    def __init__(self, networks: Iterable[Network], principals: Iterable[str] = ()) -> None:
        self._networks = tuple(networks)
        self._principals = frozenset(principal.removeprefix("User:") for principal in principals)

    def include(self, client: Connection) -> bool:
        """Uses only facts of the connection that the client cannot choose."""
        return client.principal in self._principals or is_in(client.source_address, self._networks)
