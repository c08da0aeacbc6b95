"""Kafka request and response headers: finds the body of a request, encodes responses. Sans-I/O.

Source: RequestHeader and ResponseHeader of Apache Kafka 4.3 (KIP-482). A request header is version 2 and a response
header version 1 (both add tagged fields) from the API's first flexible version on, ApiVersions responses excepted.
"""

from __future__ import annotations

import struct
from typing import Final

from telemetry.wire.apis import Api
from telemetry.wire.primitives import Reader

REQUEST_HEAD: Final = struct.Struct(">hhih")  # api_key, api_version, correlation_id, length of client_id
REQUEST_HEAD_BYTES: Final = 10  # a constant: REQUEST_HEAD.size is looked up at each use


def request_body(request: bytes, client_id_end: int, *, flexible: bool) -> bytes:
    """The offset of a request's body. Raises ProtocolError.

    `client_id_end`: the offset after the client id, which is never a compact string, even in request header 2.
    """
    if not flexible:
        return request[client_id_end:]
    reader = Reader(request, client_id_end)
    reader.skip_tagged()
    return request[reader.offset :]


def encode_request(api_key: int, version: int, correlation_id: int, client_id: bytes) -> bytes:
    """A complete request with header version 1 and an empty body, including the length field."""
    length = REQUEST_HEAD.size + len(client_id)
    return length.to_bytes(4, "big") + REQUEST_HEAD.pack(api_key, version, correlation_id, len(client_id)) + client_id


def encode_response(api: Api, version: int, correlation_id: int, body: bytes) -> bytes:
    """A complete response including the length field, with the API's response header: 1 has tagged fields, 0 none."""
    tagged = version >= api.response_tags_from
    length = len(body) + (5 if tagged else 4)
    head = (length << 32 | correlation_id & 0xFFFF_FFFF).to_bytes(8, "big")  # faster than struct in compiled code
    return head + b"\x00" + body if tagged else head + body
