"""Sockets that listen and connect, and addresses of hosts. `::` takes clients of both families, as in Java."""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from exporters.identity import normal_address

Made = TypeVar("Made")
BACKLOG = 2048  # connections that wait to be accepted; asyncio has to be given it again, it sets 100 otherwise
_MAPPED = "::ffff:"  # how a socket of both families writes an IPv4 address
_KEEPALIVE_IDLE: int = getattr(socket, "TCP_KEEPIDLE", 0x10)  # 0x10: TCP_KEEPALIVE of macOS


def listening_socket(host: str, port: int, *, backlog: int = BACKLOG, reuse_port: bool = False) -> socket.socket:
    """Bound and listening. Where the kernel knows no IPv6, `::` is 0.0.0.0. Raises OSError."""
    both = is_any_of_ipv6(host)
    if both and not socket.has_dualstack_ipv6():
        both, host = False, "0.0.0.0"  # noqa: S104 - what was asked for, without the family that is missing
    listener = socket.create_server(
        (host, port),
        family=socket.AF_INET6 if ":" in host else socket.AF_INET,
        backlog=backlog,
        reuse_port=reuse_port,
        dualstack_ipv6=both,
    )
    keep_alive(listener)  # what it accepts inherits this
    return listener


def keep_alive(connection: socket.socket) -> None:
    """TCP probes an idle peer, as both sides of Kafka have it. Load balancers forget idle connections without a word
    (Azure's after 240 s, AWS' after 350 s), where Linux begins after two hours. A dead peer is noticed in 4 min."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((_KEEPALIVE_IDLE, 120), (socket.TCP_KEEPINTVL, 30), (socket.TCP_KEEPCNT, 4)):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def is_any_of_ipv6(host: str) -> bool:
    """Whether it is `::`, however it is written."""
    with suppress(ValueError):
        return ipaddress.IPv6Address(host).is_unspecified
    return False


def is_loopback(host: str) -> bool:
    """Whether it is this machine, by address or as `localhost`."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def end_of(address: Sequence[Any]) -> tuple[str, int]:
    """Host and port of an end of a connection; the IPv4 address of an IPv4 client, whatever socket accepted it."""
    host = str(address[0])
    return normal_address(host) if host.startswith(_MAPPED) else host, int(address[1])


async def at_an_address(
    host: str, timeout_s: float, connect: Callable[[str], Awaitable[Made]], is_allowed: Callable[[str], bool] = bool
) -> Made:
    """What `connect` makes of a host's first address that answers. Each but the last has a share of the time: one that
    swallows packets, as IPv6 without a route, hides no other. By default all are allowed. Raises OSError."""
    async with asyncio.timeout(timeout_s):
        resolved = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        addresses = [str(end[0]) for *_, end in resolved if is_allowed(str(end[0]))]
        for address in addresses[:-1]:
            with suppress(OSError):
                async with asyncio.timeout(timeout_s / min(len(addresses), 3)):
                    return await connect(address)
        if addresses:
            return await connect(addresses[-1])
    raise PermissionError(f"{host} has no address in gateway.upstream_networks")
