"""Fast path for a push whose header bytes equal those of the previous push on the same connection. Sans-I/O.

Nearly all pushes take it. It only skips parsing the header: rules, spool, queue and answer are the same as for other
pushes.
"""

from __future__ import annotations

import struct

from telemetry.rules.client_metrics import PushRequest
from telemetry.wire.telemetry_messages import PUSH_HEAD, PUSH_TELEMETRY

_CORRELATION_ID_END = 12  # offset behind length, api_key, api_version and correlation_id
_FRAME = struct.Struct(">iI")  # length; api_key and api_version in one
_PUSH_V0 = PUSH_TELEMETRY << 16


class KnownPush:
    """The first bytes of pushes on this connection: `head` is everything between correlation id and payload.

    `client_id_end`: offset in `frame`, which has no tagged fields in its header (`frame[client_id_end]` is 0).
    """

    __slots__ = ("_at", "_head", "request")

    def __init__(self, frame: bytes, client_id_end: int, request: PushRequest) -> None:
        self._at = client_id_end + 1 + PUSH_HEAD.size
        self._head = frame[_CORRELATION_ID_END : self._at]
        self.request = request

    def payload(self, data: bytes) -> bytes | None:
        """The payload, when `data` is one complete push with the same header as the last one; else None."""
        at, end = self._at, len(data) - 1
        if end < at + 3 or not data.startswith(self._head, _CORRELATION_ID_END) or data[end]:  # tagged fields at end
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
