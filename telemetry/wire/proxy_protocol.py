"""HAProxy's PROXY protocol, versions 1 and 2: the client's address before its first byte. Sans-I/O.

https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt. The header comes before TLS, so it must be read without a
byte of what follows: `bytes_wanted` says how many bytes may be read next.
"""

import ipaddress
from typing import Final

from quota_metrics.kafka.primitives import ProtocolError

_SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_V1_START: Final = b"PROXY "
_V1_SHORTEST: Final = len(b"PROXY UNKNOWN\r\n")
_V1_LONGEST: Final = 107  # with both addresses of IPv6 at full length
_V2_FIXED: Final = 16
_V2_MOST_REST: Final = 2_048  # addresses take at most 216 bytes; the rest are TLVs, which nobody reads here
_LOCAL, _PROXY = 0x20, 0x21
_TCP4, _TCP6 = 0x11, 0x21


def bytes_wanted(data: bytes, version: int) -> int:
    """How many more bytes the header has at least; 0 when it is complete.

    Raises ProtocolError as soon as `data` cannot begin a header of this version (1 or 2).
    """
    start = _V1_START if version == 1 else _SIGNATURE
    if not start.startswith(data[: len(start)]):
        raise ProtocolError(f"no PROXY protocol header of version {version}")
    if version == 2:
        if len(data) < _V2_FIXED:
            return _V2_FIXED - len(data)
        rest = int.from_bytes(data[14:16])
        if rest > _V2_MOST_REST:
            raise ProtocolError(f"a PROXY protocol header of {_V2_FIXED + rest} bytes")
        return max(_V2_FIXED + rest - len(data), 0)
    if data.endswith(b"\r\n"):
        return 0
    if b"\n" in data[:-1] or len(data) >= _V1_LONGEST:
        raise ProtocolError("a PROXY protocol header without its end")
    return max(_V1_SHORTEST - len(data), 1)


def parse_header(data: bytes) -> tuple[str, int] | None:
    """Address and port of the client, as the proxy saw them. `data`: a complete header. Raises ProtocolError.

    None when the proxy speaks for itself (a health check), or does not know its client.
    """
    if not data.startswith(_SIGNATURE):
        return _parse_v1(data)
    command, family, rest = data[12], data[13], data[_V2_FIXED:]
    if command == _LOCAL:
        return None
    if command != _PROXY:
        raise ProtocolError("a PROXY protocol header of an unknown version or command")
    if family not in (_TCP4, _TCP6):
        return None  # no TCP: the specification has the connection taken as it is
    size = 4 if family == _TCP4 else 16
    if len(rest) < 2 * size + 4:
        raise ProtocolError("a PROXY protocol header without its addresses")
    return str(ipaddress.ip_address(rest[:size])), int.from_bytes(rest[2 * size : 2 * size + 2])


def _parse_v1(data: bytes) -> tuple[str, int] | None:
    try:
        words = data.removesuffix(b"\r\n").decode("ascii").split(" ")
    except UnicodeDecodeError:
        raise ProtocolError("a PROXY protocol header that is not ASCII") from None
    if words[:2] == ["PROXY", "UNKNOWN"]:
        return None
    if len(words) != 6 or words[0] != "PROXY" or words[1] not in ("TCP4", "TCP6"):
        raise ProtocolError("an invalid PROXY protocol header")
    family = ipaddress.IPv4Address if words[1] == "TCP4" else ipaddress.IPv6Address
    try:
        addresses = [str(family(word)) for word in words[2:4]]
    except ValueError:
        raise ProtocolError("a PROXY protocol header with an invalid address") from None
    for port in words[4:]:
        if not (port.isdigit() and len(port) <= 5 and int(port) < 65_536):
            raise ProtocolError("a PROXY protocol header with an invalid port")
    return addresses[0], int(words[4])
