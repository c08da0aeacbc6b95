"""Fast path for pushes whose header bytes equal those of an earlier push on the same connection. Sans-I/O.

Nearly all pushes take it. It only skips parsing the header: rules, spool, queue and answer are the same as for other
pushes.
"""

from __future__ import annotations

from typing import Final

from telemetry.rules.client_metrics import PushRequest
from telemetry.wire.frames import LENGTH_BYTES
from telemetry.wire.primitives import int16_at, int32_at
from telemetry.wire.telemetry_messages import PUSH_HEAD, PUSH_TELEMETRY

_PUSH_V0: Final = PUSH_TELEMETRY << 16  # api_key and api_version in one
_CORRELATION_ID_AT: Final = 8
_HEAD_AT: Final = 12  # the length of the client id
_CLIENT_ID_AT: Final = 14
_BEHIND_CLIENT_ID: Final = 1 + PUSH_HEAD.size  # no tagged fields, then the fields before the payload
_LEAST_BYTES: Final = _CLIENT_ID_AT + _BEHIND_CLIENT_ID + 3  # an empty payload takes one byte, as do the tagged fields
_MAX_PER_CONNECTION: Final = 256
_MAX_OF_ALL: Final = 65_536  # about 30 MB


class KnownHeads:
    """Counts how many heads the connections of a process remember, the last one of each left out. Bounded."""

    def __init__(self) -> None:
        self.count = 0


class KnownPushes:
    """The heads of accepted pushes on one connection: everything between correlation id and payload.

    Most connections have one client instance and therefore one head. After `match`, `correlation_id`, `payload` and
    `end` are those of the push that it found.
    """

    def __init__(self, known: KnownHeads) -> None:
        self.correlation_id = 0
        self.payload = b""
        self.end = 0
        self._known = known
        self._last_head = b""
        self._last: PushRequest | None = None
        self._by_head: dict[bytes, PushRequest] | None = None  # with a second head

    def match(self, data: bytes, at: int) -> PushRequest | None:
        """The request, when `data` has a complete push with a known head at `at`."""
        if self._last is None or at + _LEAST_BYTES > len(data):
            return None
        end = at + LENGTH_BYTES + int32_at(data, at)
        if end > len(data) or end < at + _LEAST_BYTES or int32_at(data, at + LENGTH_BYTES) != _PUSH_V0:
            return None
        id_length = int16_at(data, at + _HEAD_AT)
        payload_at = at + _CLIENT_ID_AT + _BEHIND_CLIENT_ID + (id_length if id_length > 0 else 0)
        if payload_at + 2 > end or data[end - 1]:  # tagged fields at the end
            return None
        request = self._request(data[at + _HEAD_AT : payload_at])
        if request is None or not self._take_payload(data, payload_at, end - 1):
            return None
        self.correlation_id = int32_at(data, at + _CORRELATION_ID_AT)
        self.end = end
        return request

    def note(self, frame: bytes, client_id_end: int, request: PushRequest) -> None:
        """Remembers the head of a push that was accepted and has no tagged fields in its header."""
        head = frame[_HEAD_AT : client_id_end + _BEHIND_CLIENT_ID]
        if self._last is not None and self._known.count < _MAX_OF_ALL:
            if self._by_head is None:
                self._by_head = {}
            if len(self._by_head) < _MAX_PER_CONNECTION and head not in self._by_head:
                self._by_head[head] = request
                self._known.count += 1
        self._last_head, self._last = head, request

    def forget(self) -> None:
        """The identity of the connection may change, or it is closed."""
        if self._by_head is not None:
            self._known.count -= len(self._by_head)
        self._last_head, self._last, self._by_head = b"", None, None

    def _request(self, head: bytes) -> PushRequest | None:
        if head == self._last_head:
            return self._last
        return None if self._by_head is None else self._by_head.get(head)

    def _take_payload(self, data: bytes, at: int, end: int) -> bool:
        """Whether the payload, with its length + 1 as a varint before it, fills [at, end)."""
        size = shift = 0
        while at < end and shift < 28:
            byte = data[at]
            at += 1
            size |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.payload = data[at:end]
                return size == end - at + 1
            shift += 7
        return False
