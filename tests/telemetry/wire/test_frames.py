"""Any split of a byte stream gives the same output, and invalid bytes raise only ProtocolError."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.wire.errors import ProtocolError
from telemetry.wire.frames import FrameScanner, Mode

MODES = {0: Mode.FORWARD, 1: Mode.HOLD, 2: Mode.SKIP}


def frame(mode: int, body: bytes) -> bytes:
    return (len(body) + 1).to_bytes(4, "big") + bytes([mode]) + body


class Owner:
    """Decides by the first byte; holds are turned around; each forwarded frame is followed by a mark."""

    def __init__(self, max_frame_bytes: int = 1000) -> None:
        self.scanner = FrameScanner(
            begin=self.begin, complete=self.complete, end=lambda: b"|", max_frame_bytes=max_frame_bytes
        )
        self.skipped = 0

    def begin(self, length: int, data: bytes, offset: int) -> Mode | None:
        if len(data) <= offset:
            return None
        return MODES[data[offset] % 3]

    def complete(self, held: bytes) -> bytes:
        self.skipped += not held
        return held[::-1]


def expected(frames: list[tuple[int, bytes]]) -> bytes:
    out = b""
    for mode, body in frames:
        whole = frame(mode, body)
        out += {0: whole + b"|", 1: whole[::-1], 2: b""}[mode]
    return out


frames_strategy = st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=40)), max_size=8)


@given(frames_strategy, st.lists(st.integers(1, 30), max_size=40))
def test_output_does_not_depend_on_chunk_boundaries(frames: list[tuple[int, bytes]], cuts: list[int]) -> None:
    stream = b"".join(frame(mode, body) for mode, body in frames)
    owner = Owner()
    out = b""
    at = 0
    for cut in [*cuts, len(stream)]:
        out += b"".join(owner.scanner.feed(stream[at : at + cut]))
        at += cut
    assert out == expected(frames)
    assert owner.skipped == sum(mode == 2 for mode, _ in frames)


def test_consecutive_forwarded_frames_are_not_copied() -> None:
    scanner = FrameScanner(begin=lambda *_: Mode.FORWARD, complete=bytes, end=bytes, max_frame_bytes=100)
    data = frame(0, b"abc") * 3
    (out,) = scanner.feed(data)
    assert out is data


def test_empty_feed_decides_pending_frame() -> None:
    ready: list[Mode | None] = [None]
    scanner = FrameScanner(begin=lambda *_: ready[0], complete=bytes, end=bytes, max_frame_bytes=100)
    assert scanner.feed(frame(0, b"abc")) == []
    ready[0] = Mode.FORWARD
    assert scanner.feed(b"") == [frame(0, b"abc")]


@pytest.mark.parametrize("length", [0, -1, -(2**31), 1001, 2**31 - 1])
def test_out_of_range_length_raises_protocol_error(length: int) -> None:
    with pytest.raises(ProtocolError, match="frame of"):
        Owner().scanner.feed(length.to_bytes(4, "big", signed=True))


@given(st.lists(st.binary(max_size=64), max_size=10))
def test_random_bytes_raise_only_protocol_error(pieces: list[bytes]) -> None:
    owner = Owner()
    try:
        for piece in pieces:
            owner.scanner.feed(piece)
    except ProtocolError:
        pass
