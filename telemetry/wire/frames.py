"""Splits a byte stream into Kafka frames without buffering frames that are forwarded. Sans-I/O.

A frame is a big-endian int32 length and that many bytes. At the start of each frame the scanner calls the owner's
`begin` with the bytes that have arrived; it returns the mode:

    FORWARD  bytes are forwarded unchanged as they arrive
    HOLD     the frame is collected and passed to `complete`, whose result is sent in its place
    SKIP     bytes are dropped; `complete` is called with b"" at the end of the frame
    None     undecided: more bytes are needed, or the owner is not ready; `feed(b"")` calls `begin` again

After the last byte of a forwarded frame, `end` returns bytes to send after it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from telemetry.wire.errors import ProtocolError

LENGTH_BYTES = 4


class Mode(Enum):
    """How a frame is handled."""

    FORWARD = 1
    HOLD = 2
    SKIP = 3


Begin = Callable[[int, bytes, int], Mode | None]


class FrameScanner:
    """Scanner of one stream; keeps the state between two chunks.

    `begin(length, data, offset)`: `length` is the frame's length field, `data[offset:]` the bytes that have arrived
    after it, which may include later frames.
    """

    __slots__ = (
        "_begin",
        "_begun",
        "_complete",
        "_end",
        "_held",
        "_left",
        "_max_frame_bytes",
        "_mode",
        "_undecided",
        "accepts_empty",
        "between_frames",
    )

    def __init__(
        self,
        *,
        begin: Begin,
        complete: Callable[[bytes], bytes],
        end: Callable[[], bytes],
        max_frame_bytes: int,
    ) -> None:
        self._begin = begin
        self._complete = complete
        self._end = end
        self._max_frame_bytes = max_frame_bytes
        self._left = 0  # bytes of the current frame that have not arrived
        self._mode = Mode.FORWARD
        self._begun = 0  # frames that `begin` has decided on
        self._held = bytearray()  # of a frame in mode HOLD
        self._undecided = b""  # the beginning of a frame that `begin` has not decided on
        self.accepts_empty = False  # whether frames may be empty, as SASL tokens without a Kafka header may be
        self.between_frames = True  # between two frames

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the bytes to send for this chunk, in order. Raises ProtocolError on a length out of bounds."""
        if self._undecided:
            data, self._undecided = self._undecided + data, b""
        out: list[bytes] = []
        start = position = 0  # data[start:position] is to be forwarded
        size = len(data)
        while position < size:
            if not self._left:
                if not self._decide(data, position):
                    self._undecided = data[position:]
                    break
                if self._mode is not Mode.FORWARD:
                    _append(out, data, start, position)
            taken = min(self._left, size - position)
            self._left -= taken
            position += taken
            if self._mode is Mode.FORWARD:
                behind = b"" if self._left else self._end()
                if behind:
                    _append(out, data, start, position)
                    out.append(behind)
                    start = position
                continue
            self._collect(out, data[position - taken : position])
            start = position
        _append(out, data, start, position)
        self.between_frames = not self._left and not self._undecided
        return out

    @property
    def unfinished(self) -> int:
        """The number of the frame that has arrived in part and is not forwarded; 0 if none."""
        if self._undecided:
            return self._begun + 1
        return self._begun if self._left and self._mode is not Mode.FORWARD else 0

    @property
    def held_bytes(self) -> int:
        """The bytes held of that frame."""
        return len(self._undecided) + len(self._held)

    def discard(self) -> None:
        """Releases the bytes of an unfinished frame; `feed` must not be called afterwards.

        Owner and scanner refer to each other: without this, the bytes of a closed connection would stay in memory until
        the next full garbage collection.
        """
        self._held, self._undecided = bytearray(), b""

    def _decide(self, data: bytes, position: int) -> bool:
        body = position + LENGTH_BYTES
        if len(data) < body:
            return False
        length = int.from_bytes(data[position:body], "big", signed=True)
        if not 0 < length <= self._max_frame_bytes and (length or not self.accepts_empty):
            raise ProtocolError(f"cannot accept a frame of {length} bytes: the limit is {self._max_frame_bytes}")
        mode = self._begin(length, data, body)
        if mode is None:
            return False
        self._begun += 1
        self._mode = mode
        self._left = LENGTH_BYTES + length
        return True

    def _collect(self, out: list[bytes], piece: bytes) -> None:
        hold = self._mode is Mode.HOLD
        if self._left:
            if hold:
                self._held += piece
            return
        frame = piece if hold else b""
        if self._held:
            frame, self._held = bytes(self._held + piece), bytearray()
        replacement = self._complete(frame)
        if replacement:
            out.append(replacement)


def _append(out: list[bytes], data: bytes, start: int, end: int) -> None:
    if start == 0 and end == len(data) and end:
        out.append(data)  # the common case: forwarded without a copy
    elif end > start:
        out.append(data[start:end])
