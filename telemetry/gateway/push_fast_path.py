"""The short way of a push that differs from the one before on its connection in correlation id and payload only.

Which is nearly every push. What is remembered is how the head reads; rules and spool are the same as on the long way.
Sans-I/O.
"""

from __future__ import annotations

import struct

from telemetry.rules.client_instances import Caller
from telemetry.rules.client_metrics import PushRequest
from telemetry.wire.errors import ErrorCode
from telemetry.wire.telemetry_messages import PUSH_HEAD, PUSH_RESPONSE, PUSH_TELEMETRY, read_push_head

_BEFORE_ID = 12  # length, api_key, api_version, correlation_id
_FRAME = struct.Struct(">iI")  # length; api_key and api_version in one
_PUSH_V0 = PUSH_TELEMETRY << 16
_RESPONSES = {  # what stands before and behind the correlation id
    code: ((5 + len(body)).to_bytes(4, "big"), b"\x00" + body) for code, body in PUSH_RESPONSE.items()
}


def push_response(correlation_id: bytes, code: ErrorCode) -> bytes:
    """A whole response."""
    length, body = _RESPONSES[code]
    return length + correlation_id + body


def known_push(frame: bytes, caller: Caller) -> KnownPush | None:
    """What there is to remember of a push that was taken the long way; None when tagged fields stand in its header."""
    id_length = int.from_bytes(frame[_BEFORE_ID : _BEFORE_ID + 2], "big", signed=True)
    tags = _BEFORE_ID + 2 + max(id_length, 0)
    end = tags + 1 + PUSH_HEAD.size
    if frame[tags]:
        return None
    return KnownPush(frame[_BEFORE_ID:end], PushRequest(*read_push_head(frame[tags + 1 : end]), caller))


class KnownPush:
    """How the pushes of a connection begin: `head` is all between correlation id and payload."""

    __slots__ = ("_at", "_head", "request")

    def __init__(self, head: bytes, request: PushRequest) -> None:
        self._head = head
        self._at = _BEFORE_ID + len(head)
        self.request = request

    def payload(self, data: bytes) -> bytes | None:
        """The payload of one whole push that begins so; None when `data` is anything else: take the long way."""
        at, end = self._at, len(data) - 1
        if end < at + 3 or not data.startswith(self._head, _BEFORE_ID) or data[end]:  # that are tagged fields
            return None
        length, api = _FRAME.unpack_from(data)
        first, second = data[at], data[at + 1]  # of the payload's length + 1, as a varint
        if api != _PUSH_V0 or length != end - 3 or first < 0x80:
            return None
        if second < 0x80:
            start, size = at + 2, first & 0x7F | second << 7
        elif data[at + 2] < 0x80:
            start, size = at + 3, first & 0x7F | (second & 0x7F) << 7 | data[at + 2] << 14
        else:
            return None
        return data[start:end] if start < end == start + size - 1 else None
