"""Kafka's frames and headers: splits a byte stream into frames without buffering those that are forwarded. Sans-I/O.

A frame is a big-endian int32 length and that many bytes. At the start of each frame the scanner calls its subclass's
`begin` with the bytes that have arrived; it returns the mode:

    FORWARD    bytes are forwarded unchanged as they arrive
    WATCH      bytes are forwarded as they arrive, as `watch` returns them
    HOLD       the frame is collected and passed to `complete`, whose result is sent in its place
    SKIP       bytes are dropped; `complete` is called with b"" at the end of the frame
    UNDECIDED  more bytes are needed, or the owner is not ready; `feed(b"")` calls `begin` again

After the last byte of a forwarded frame, `end` returns bytes to send after it.

A request header is version 2 and a response header version 1 (both add tagged fields) from the API's first flexible
version on, ApiVersions responses excepted (RequestHeader and ResponseHeader of Apache Kafka 4.3, KIP-482).
"""

import struct
from abc import ABC, abstractmethod
from typing import Final

from mypy_extensions import mypyc_attr

from quota_metrics.kafka.primitives import ProtocolError, Reader, int16_at, int32_at
from telemetry.wire.apis import Api

LENGTH_BYTES: Final = 4
# Numbers, because access to an enum member is slow in compiled code.
UNDECIDED: Final = 0
FORWARD: Final = 1
WATCH: Final = 2
HOLD: Final = 3
SKIP: Final = 4
REQUEST_HEAD: Final = struct.Struct(">hhih")  # api_key, api_version, correlation_id, length of client_id
MAX_REQUEST_HEAD_BYTES: Final = 100_000  # a client id and a transactional id of 32 kB each fit
RESPONSE_HEAD_BYTES: Final = 8  # with the length field, without tagged fields
REQUEST_HEAD_BYTES: Final = 10  # a constant: REQUEST_HEAD.size is looked up at each use


@mypyc_attr(allow_interpreted_subclasses=True)  # those of tests
class FrameScanner(ABC):
    """Scanner of one stream; keeps the state between two chunks."""

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._left = 0  # bytes of the current frame that have not arrived
        self._mode = FORWARD
        self._begun = 0  # frames that `begin` has decided on
        self._collected = bytearray()  # of a frame in mode HOLD
        self._undecided = b""  # the beginning of a frame that `begin` has not decided on
        self.accepts_empty = False  # whether frames may be empty, as SASL tokens without a Kafka header may be

    @abstractmethod
    def begin(self, length: int, data: bytes, offset: int) -> int:
        """The mode of a frame. `length`: its length field; `data[offset:]`: what has arrived after it, or even more."""

    @abstractmethod
    def complete(self, frame: bytes) -> bytes:
        """The bytes to send in place of a frame in mode HOLD or SKIP."""

    def watch(self, data: bytes) -> bytes:
        """Returns as many bytes, which are sent in place of these bytes of a frame in mode WATCH."""
        return data

    def end(self) -> bytes:
        return b""

    def feed(self, data: bytes) -> bytes:
        """Returns the bytes to send for this chunk. Raises ProtocolError on a length out of bounds."""
        if self._undecided:
            data, self._undecided = self._undecided + data, b""
        size = len(data)
        if self._left or self._decide(data, 0):
            if self._left > size and self._mode <= WATCH:  # a part of a frame
                self._left -= size
                return data if self._mode == FORWARD else self.watch(data)
            if self._left == size and not self._collected:
                return self._feed_frame(data)
        return self._feed_pieces(data)

    def _feed_frame(self, data: bytes) -> bytes:
        """`feed` for a chunk that is one frame, or the end of a forwarded one."""
        self._left = 0
        if self._mode > WATCH:
            return self.complete(data if self._mode == HOLD else b"")
        if self._mode == WATCH:
            data = self.watch(data)
        behind = self.end()
        return data + behind if behind else data

    def _feed_pieces(self, data: bytes) -> bytes:
        """`feed` for a chunk that begins or ends within a frame, or has several frames."""
        size = len(data)
        out: list[bytes] = []
        start = position = 0  # data[start:position] is to be forwarded
        while position < size:
            if not self._left:
                if not self._decide(data, position):
                    self._undecided = data[position:]
                    break
                if self._mode != FORWARD:
                    _append(out, data, start, position)
            taken = min(self._left, size - position)
            self._left -= taken
            position += taken
            if self._mode == FORWARD:
                behind = b"" if self._left else self.end()
                if behind:
                    _append(out, data, start, position)
                    out.append(behind)
                    start = position
                continue
            self._collect(out, data, position - taken, position)
            start = position
        _append(out, data, start, position)
        return out[0] if len(out) == 1 else b"".join(out)

    @property
    def between_frames(self) -> bool:
        return not self._left and not self._undecided

    @property
    def unfinished(self) -> int:
        """The number of the frame that has arrived in part and is not forwarded; 0 if none."""
        if self._undecided:
            return self._begun + 1
        return self._begun if self._left and self._mode > WATCH else 0

    @property
    def held_bytes(self) -> int:
        """The bytes held of that frame."""
        return len(self._undecided) + len(self._collected)

    def discard(self) -> None:
        """Releases the bytes of an unfinished frame; `feed` must not be called afterwards.

        Objects that refer to each other keep them otherwise, until the next full garbage collection.
        """
        self._collected, self._undecided = bytearray(), b""

    def _decide(self, data: bytes, position: int) -> bool:
        body = position + LENGTH_BYTES
        if len(data) < body:
            return False
        length = int32_at(data, position)
        if not 0 < length <= self._max_frame_bytes and (length or not self.accepts_empty):
            raise ProtocolError(f"cannot accept a frame of {length} bytes: the limit is {self._max_frame_bytes}")
        mode = self.begin(length, data, body)
        if mode == UNDECIDED:
            return False
        self._begun += 1
        self._mode = mode
        self._left = LENGTH_BYTES + length
        return True

    def _collect(self, out: list[bytes], data: bytes, start: int, end: int) -> None:
        if self._mode == WATCH:
            out.append(self.watch(data[start:end]))
            if not self._left:
                out.append(self.end())
            return
        hold = self._mode == HOLD
        if self._left:
            if hold:
                self._collected += data[start:end]
            return
        frame = b""
        if hold:
            frame = data[start:end]
            if self._collected:
                frame, self._collected = bytes(self._collected + frame), bytearray()
        replacement = self.complete(frame)
        if replacement:
            out.append(replacement)


def _append(out: list[bytes], data: bytes, start: int, end: int) -> None:
    if start == 0 and end == len(data) and end:
        out.append(data)  # the common case: forwarded without a copy
    elif end > start:
        out.append(data[start:end])


def check_head(data: bytes, offset: int) -> None:
    """Raises ProtocolError when the head of a request that has not arrived whole is too long."""
    if len(data) - offset > MAX_REQUEST_HEAD_BYTES:
        raise ProtocolError("cannot read the head of a request: too long")


def read_acks(data: bytes, client_id_end: int, end: int, version: int) -> int:
    """The acks of a Produce request that ends at `end`. Raises ProtocolError when they have not arrived yet."""
    at = client_id_end + 2
    if version >= 9 and at + 2 <= end and at + 2 <= len(data) and not data[at - 2] and not data[at - 1]:
        return int16_at(data, at)  # no tagged fields and no transaction, as in nearly all requests
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


def request_body(request: bytes, client_id_end: int, *, flexible: bool) -> bytes:
    """The body of a request. Raises ProtocolError.

    `client_id_end`: the offset after the client id, which is never a compact string, even in request header 2.
    """
    if not flexible:
        return request[client_id_end:]
    reader = Reader(request, client_id_end)
    reader.skip_tagged()
    return request[reader.offset :]


def response_body_at(response: bytes, *, tagged: bool) -> int:
    """The offset after a response's header, whose tagged fields a newer broker may fill. Raises ProtocolError."""
    reader = Reader(response, RESPONSE_HEAD_BYTES)
    if tagged:
        reader.skip_tagged()
    return reader.offset


def encode_response(api: Api, version: int, correlation_id: int, body: bytes) -> bytes:
    """A complete response including the length field, with the API's response header: 1 has tagged fields, 0 none."""
    tagged = version >= api.response_tags_from
    length = len(body) + (5 if tagged else 4)
    head = (length << 32 | correlation_id & 0xFFFF_FFFF).to_bytes(8, "big")  # faster than struct in compiled code
    return head + b"\x00" + body if tagged else head + body
