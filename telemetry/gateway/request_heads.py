"""Reads leading fields of forwarded requests: acks of Produce, the client software in ApiVersions."""

from __future__ import annotations

import re

from telemetry.wire.errors import ProtocolError
from telemetry.wire.primitives import Reader

_SOFTWARE = re.compile(  # ApiVersionsRequest.SOFTWARE_NAME_VERSION_PATTERN
    r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?"
)

_NO_TAGS_NO_TRANSACTION = b"\x00\x00"  # how the body of nearly each Produce request begins, from version 9 on


def software_of(body: bytes) -> tuple[str, str]:
    """Name and version of the client software in an ApiVersions request (3+); both empty when either is invalid."""
    reader = Reader(body)
    name, version = reader.compact_string(), reader.compact_string()
    return (name, version) if _SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(version) else ("", "")


def acks_of(data: bytes, client_id_end: int, end: int, version: int) -> int:
    """acks of a Produce request that ends at `end`. Raises ProtocolError when it has not arrived yet."""
    if version >= 9 and data[client_id_end : client_id_end + 2] == _NO_TAGS_NO_TRANSACTION:
        at = client_id_end + 2
        if at + 2 <= min(end, len(data)):
            return int.from_bytes(data[at : at + 2], "big", signed=True)
    reader = Reader(data, min(client_id_end, len(data)))
    if version >= 9:
        reader.skip_tagged()
        reader.skip(max(reader.uvarint() - 1, 0))  # transactional_id
    elif version >= 3:
        reader.skip(max(reader.int16(), 0))
    acks = reader.int16()
    if reader.offset > end:
        raise ProtocolError("cannot read the head of a Produce request: it is truncated")
    return acks
