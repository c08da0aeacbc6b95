"""Fast path for a push whose header bytes equal those of the previous push on the same connection. Sans-I/O.

Nearly all pushes take it. It only skips parsing the header: rules, spool, queue and answer are the same as for other
pushes.
"""

from __future__ import annotations

import functools
import struct
from typing import Final

from telemetry.rules.client_metrics import PushRequest
from telemetry.wire.telemetry_messages import PUSH_HEAD, PUSH_TELEMETRY

_CORRELATION_ID_END: Final = 12  # offset behind length, api_key, api_version and correlation_id
_PUSH_V0: Final = PUSH_TELEMETRY << 16  # api_key and api_version in one


class KnownPush:
    """The first bytes of pushes on this connection: `head` is everything between correlation id and payload.

    `client_id_end`: offset in `frame`, which has no tagged fields in its header (`frame[client_id_end]` is 0).
    """

    __slots__ = ("_at", "_frame", "_head", "client_id", "request")

    def __init__(self, frame: bytes, client_id_end: int, request: PushRequest) -> None:
        self._at = client_id_end + 1 + PUSH_HEAD.size
        self._frame = _frame(self._at - _CORRELATION_ID_END)
        self._head = frame[_CORRELATION_ID_END : self._at]
        self.request = request
        self.client_id = request.caller.client_id

    def match(self, data: bytes) -> tuple[int, bytes] | None:
        """Correlation id and payload, when `data` is one complete push with the same header as the last one."""
        at, end = self._at, len(data) - 1
        if end < at + 3 or data[end]:  # tagged fields at the end
            return None
        length, api, correlation_id, head, first, second = self._frame.unpack_from(data)
        if api != _PUSH_V0 or length != end - 3 or head != self._head or first < 0x80:
            return None
        size = end - at  # of the payload's length + 1 as a varint, and the payload
        if second < 0x80:
            return (correlation_id, data[at + 2 : end]) if first + (second << 7) == size + 0x7F else None
        third = data[at + 2]
        known = third < 0x80 and first + (second << 7) + (third << 14) == size + 0x407E
        return (correlation_id, data[at + 3 : end]) if known else None


@functools.lru_cache(maxsize=256)
def _frame(head_bytes: int) -> struct.Struct:
    """length; api_key and api_version in one; correlation_id; head; the first two bytes behind it."""
    return struct.Struct(f">iIi{head_bytes}sBB")
