"""Who a client is where it is stored, and who pays for it where room is limited. Sans-I/O.

A client chooses its client-id, and Kafka accepts 32,767 characters. Stored in full, an id of that length costs a row
a hundred times as much as others. An authenticated principal, or else the source address, is what a client cannot
choose: budgets count by it.
"""

from ipaddress import IPv4Address, IPv6Address, ip_address
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


def parsed_address(text: str) -> IPv4Address | IPv6Address:
    """An address without its zone and brackets; IPv4-mapped IPv6 as IPv4, as Java's InetAddress does. Raises
    ValueError."""
    parsed = ip_address(text.partition("%")[0].strip("[]"))
    return (isinstance(parsed, IPv6Address) and parsed.ipv4_mapped) or parsed


def normal_address(text: str) -> str:
    """One spelling of an address; a name unchanged."""
    try:
        return str(parsed_address(text))
    except ValueError:
        return text


def is_shortened(name: str) -> bool:
    """Whether a stored name may be one that `stored_name` made: it is then no name of a client."""
    return len(name) == MAX_NAME_CHARS and name[_PREFIX_CHARS] == "~"


def address_key(address: str) -> str:
    """The key of limits per address: an IPv4 address, or an IPv6 address's /64 network, which one host may have."""
    if ":" not in address:
        return address
    parsed = parsed_address(address)
    return parsed.exploded[:19] if isinstance(parsed, IPv6Address) else str(parsed)


def payer_of(principal: str, address: str) -> str:
    """The principal if it is authenticated and known, else the `address_key`, or text that is no address."""
    if principal != ANONYMOUS and not principal.startswith((UNREAD_PRINCIPAL, CLAIMED)):
        return principal
    try:
        return address_key(address)
    except ValueError:  # stated by a sender of OTLP
        return address
