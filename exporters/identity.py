"""Who a client is where it is stored, and who pays for it where room is limited. Sans-I/O.

A client chooses its client-id, and Kafka accepts 32,767 characters. Stored in full, an id of that length costs a row
a hundred times as much as others. An authenticated principal, or else the source address, is what a client cannot
choose: budgets count by it.
"""

from __future__ import annotations

from ipaddress import IPv6Address
from typing import Final

from xxhash import xxh3_64_hexdigest

from exporters.model import ANONYMOUS

UNREAD_PRINCIPAL: Final = "<unknown "  # begins the recorded name of users that a broker accepted by unreadable means
CLAIMED: Final = "claimed:"  # begins the recorded principal of OTLP senders that are not authenticated
MAX_NAME_CHARS: Final = 255
_PREFIX_CHARS: Final = MAX_NAME_CHARS - 17  # then a tilde and 16 hexadecimal digits


def stored_name(name: str) -> str:
    """A user or client-id as it is stored: of more than 255 characters the first 238, `~` and the xxh3 hash of all."""
    if len(name) <= MAX_NAME_CHARS:
        return name
    return f"{name[:_PREFIX_CHARS]}~{xxh3_64_hexdigest(name.encode('utf-8', 'surrogatepass'))}"


def address_key(address: str) -> str:
    """The key of limits per address: an IPv4 address, or an IPv6 address's /64 network, which one host may have."""
    if ":" not in address:
        return address
    parsed = IPv6Address(address.partition("%")[0])
    mapped = parsed.ipv4_mapped
    return str(mapped) if mapped else parsed.exploded[:19]


def payer_of(principal: str, address: str) -> str:
    """The principal if it is authenticated and known, else the `address_key`, or text that is no address."""
    if principal != ANONYMOUS and not principal.startswith((UNREAD_PRINCIPAL, CLAIMED)):
        return principal
    try:
        return address_key(address)
    except ValueError:  # stated by a sender of OTLP
        return address
