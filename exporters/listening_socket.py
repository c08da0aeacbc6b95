"""Sockets that listen, and the addresses at their ends. `::` takes clients of both families, as in Java."""

import ipaddress
import socket
from collections.abc import Sequence
from typing import Any

from exporters.identity import normal_address

BACKLOG = 2048  # connections that wait to be accepted; asyncio has to be given it again, it sets 100 otherwise
_MAPPED = "::ffff:"  # how a socket of both families writes an IPv4 address


def listening_socket(host: str, port: int, *, backlog: int = BACKLOG, reuse_port: bool = False) -> socket.socket:
    """Bound and listening. Where the kernel knows no IPv6, `::` is 0.0.0.0. Raises OSError."""
    both = is_any_of_ipv6(host)
    if both and not socket.has_dualstack_ipv6():
        both, host = False, "0.0.0.0"  # noqa: S104 - what was asked for, without the family that is missing
    return socket.create_server(
        (host, port),
        family=socket.AF_INET6 if ":" in host else socket.AF_INET,
        backlog=backlog,
        reuse_port=reuse_port,
        dualstack_ipv6=both,
    )


def is_any_of_ipv6(host: str) -> bool:
    """Whether it is `::`, however it is written."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.version == 6 and address.is_unspecified


def is_loopback(host: str) -> bool:
    """Whether it is this machine, by address or as `localhost`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def end_of(address: Sequence[Any]) -> tuple[str, int]:
    """Host and port of an end of a connection; the IPv4 address of an IPv4 client, whatever socket accepted it."""
    host = str(address[0])
    return normal_address(host) if host.startswith(_MAPPED) else host, int(address[1])
