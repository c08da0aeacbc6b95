"""Reads leading fields of forwarded requests: acks of Produce, the client software in ApiVersions."""

from __future__ import annotations

import re
from typing import Final

from telemetry.wire.apis import API_VERSIONS, APIS, Api
from telemetry.wire.errors import ProtocolError
from telemetry.wire.primitives import INT16_MAX, Reader, int16_at

MAX_REQUEST_HEAD_BYTES: Final = 100_000  # a client id and a transactional id of 32 kB each fit
_SOFTWARE: Final = re.compile(  # ApiVersionsRequest.SOFTWARE_NAME_VERSION_PATTERN
    r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?"
)


def software_of(body: bytes) -> tuple[str, str]:
    """Name and version of the client software in an ApiVersions request (3+); both empty when either is invalid."""
    reader = Reader(body)
    name, version = reader.compact_string(), reader.compact_string()
    return (name, version) if _SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(version) else ("", "")


def api_of(key_and_version: int) -> Api:
    """The API of a request by the first four bytes of its header. Raises ProtocolError."""
    key, version = key_and_version >> 16, key_and_version & 0xFFFF
    api = APIS.get(key)
    if api is None or version > (INT16_MAX if key == API_VERSIONS else api.max_version):
        raise ProtocolError(f"cannot forward a request of API {key} version {version}")
    return api


def check_head(data: bytes, offset: int) -> None:
    """Raises ProtocolError when the head of a request that has not arrived whole is too long."""
    if len(data) - offset > MAX_REQUEST_HEAD_BYTES:
        raise ProtocolError("cannot read the head of a request: too long")


def acks_of(data: bytes, client_id_end: int, end: int, version: int) -> int:
    """acks of a Produce request that ends at `end`. Raises ProtocolError when it has not arrived yet."""
    at = client_id_end + 2
    if version >= 9 and at + 2 <= end and at + 2 <= len(data) and not data[at - 2] and not data[at - 1]:
        return int16_at(data, at)  # no tagged fields and no transaction, as in nearly each request
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
