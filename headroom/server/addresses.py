"""Whether the addresses that `headroom serve` will listen on can be opened, before it starts anything; and the error of
one that cannot be opened later.

The former is not part of startup_check.py: `headroom config check` is used beside a running service, which holds them.
"""

import errno
import os
import socket
from collections.abc import Awaitable

from exporters.listening_socket import is_any_of_ipv6, listening_socket
from headroom.config.settings import Address, ServeConfig
from headroom.errors import ServeError


def address_faults(config: ServeConfig) -> list[str]:
    """One line for each address that cannot be opened, with its flag or setting. Without `sql`: the managed server
    waits for a predecessor that may hold its port, and reserves it before it starts."""
    grpc, otlp = config.grpc, config.otlp
    addresses = {"--http": config.http, "--grpc": grpc.listen, "--otlp-grpc": otlp.grpc, "--otlp-http": otlp.http}
    if not config.observe:
        further = {f"listeners[{number}].listen": listener.listen for number, listener in enumerate(config.listeners)}
        addresses = {"--listen": config.listen, **further, **addresses}
    return [f"{flag}: {fault}" for flag, address in addresses.items() if address and (fault := address_fault(address))]


def address_fault(address: Address, error: OSError | None = None) -> str:
    """Why the address cannot be opened, by `error` or by opening and closing it; empty when it can."""
    if error is None:
        try:
            _open_once(address)
        except OSError as exc:
            error = exc
    if error is None:
        return ""
    # asyncio's message repeats the address; errors of the resolver have numbers of their own
    why = (
        os.strerror(error.errno) if error.errno and not isinstance(error, socket.gaierror) else error.strerror or error
    )
    return f"cannot listen on {address}: {why}"


async def listening(opening: Awaitable[tuple[str, int]], wanted: Address) -> Address:
    """The address that was opened. Raises ServeError: the port is in use, or may not be used."""
    try:
        host, port = await opening
    except OSError as exc:
        raise ServeError(address_fault(wanted, exc)) from exc
    return Address(host=host, port=port)


def _open_once(address: Address) -> None:
    """Raises OSError. A connection that is closing does not keep a port. As in asyncio, an address that this machine
    lacks is no fault beside others: `localhost` may name ::1 where IPv6 is off."""
    if is_any_of_ipv6(address.host):
        listening_socket(address.host, address.port).close()
        return
    missing: list[OSError] = []
    infos = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    for family, *_, bound in infos:
        try:
            socket.create_server(bound, family=family).close()
        except OSError as exc:
            if exc.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise
            missing.append(exc)
    if len(missing) == len(infos):
        raise missing[0]
