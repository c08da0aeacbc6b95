"""Cuts a byte stream into Kafka frames, and keeps nothing of frames that are forwarded. Sans-I/O.

A frame is a big-endian int32 length and that many bytes. At the start of each frame the owner's `begin` gets what has
arrived of it and returns its mode:

    FORWARD  its bytes go out as they came, piece by piece
    HOLD     it is collected and passed to `complete`, whose result goes out in its place
    SKIP     its bytes are dropped; `complete` is called with b"" at its end
    None     not yet: more bytes are needed, or the owner is not ready; `feed(b"")` asks again

After the last byte of a forwarded frame `end` is asked for bytes to go out behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from telemetry.wire.errors import ProtocolError

LENGTH_BYTES = 4


class Mode(Enum):
    """What is done with a frame."""

    FORWARD = 1
    HOLD = 2
    SKIP = 3


Begin = Callable[[int, bytes, int], Mode | None]


class FrameScanner:
    """The state between two pieces of a stream.

    `begin(length, data, offset)`: `length` as on the wire, `data[offset:]` is what has arrived from the first byte
    after the length on, and may hold later frames too.
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
        self._left = 0  # bytes of the current frame that have not come yet
        self._mode = Mode.FORWARD
        self._begun = 0  # frames that `begin` has decided on
        self._held = bytearray()  # of a frame that is collected
        self._undecided = b""  # the beginning of a frame that `begin` has not decided on
        self.accepts_empty = False  # whether a frame may have no bytes: SASL tokens that are frames of their own
        self.between_frames = True  # the last frame has ended, and nothing of the next one has come

    def feed(self, data: bytes) -> list[bytes]:
        """What goes out for these bytes, in order. Raises ProtocolError on a length out of bounds."""
        if self._undecided:
            data, self._undecided = self._undecided + data, b""
        out: list[bytes] = []
        start = position = 0  # data[start:position] is a run to be forwarded
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
        """The number of the frame of which a part has arrived that was not forwarded; 0: there is none."""
        if self._undecided:
            return self._begun + 1
        return self._begun if self._left and self._mode is not Mode.FORWARD else 0

    @property
    def held_bytes(self) -> int:
        """What is kept of that frame."""
        return len(self._undecided) + len(self._held)

    def discard(self) -> None:
        """Frees what is kept of an unfinished frame; nothing may be fed afterwards.

        Owner and scanner refer to each other, so without it the bytes of a lost connection stay until a full
        collection of garbage, which may be minutes away.
        """
        self._held, self._undecided = bytearray(), b""

    def _decide(self, data: bytes, position: int) -> bool:
        body = position + LENGTH_BYTES
        if len(data) < body:
            return False
        length = int.from_bytes(data[position:body], "big", signed=True)
        if not 0 < length <= self._max_frame_bytes and (length or not self.accepts_empty):
            raise ProtocolError(f"cannot take a frame of {length} bytes: the limit is {self._max_frame_bytes}")
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
        out.append(data)  # the common case: forwarded uncopied
    elif end > start:
        out.append(data[start:end])
