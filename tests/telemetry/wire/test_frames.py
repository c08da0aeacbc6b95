"""Any split of a byte stream gives the same output, and invalid bytes raise only ProtocolError."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quota_metrics.kafka.primitives import ProtocolError
from telemetry.wire.frames import FORWARD, HOLD, SKIP, UNDECIDED, WATCH, FrameScanner

MODES = {0: FORWARD, 1: HOLD, 2: SKIP, 3: WATCH}
INVERTED = bytes(255 - byte for byte in range(256))


def frame(mode: int, body: bytes) -> bytes:
    return (len(body) + 1).to_bytes(4, "big") + bytes([mode]) + body


class Scanner(FrameScanner):
    """By the first byte: holds are turned around, watched bytes inverted; a mark follows each forwarded frame."""

    def __init__(self, mark: bytes = b"|") -> None:
        super().__init__(1000)
        self.skipped = 0
        self.mark = mark

    def begin(self, length: int, data: bytes, offset: int) -> int:
        if len(data) <= offset:
            return UNDECIDED
        return MODES[data[offset] % 4]

    def watch(self, data: bytes) -> bytes:
        return data.translate(INVERTED)

    def complete(self, held: bytes) -> bytes:
        self.skipped += not held
        return held[::-1]

    def end(self) -> bytes:
        return self.mark


def expected(frames: list[tuple[int, bytes]]) -> bytes:
    out = b""
    for mode, body in frames:
        whole = frame(mode, body)
        out += {0: whole + b"|", 1: whole[::-1], 2: b"", 3: whole.translate(INVERTED) + b"|"}[mode]
    return out


frames_strategy = st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=40)), max_size=8)


@given(frames_strategy, st.lists(st.integers(1, 30), max_size=40))
def test_output_does_not_depend_on_chunk_boundaries(frames: list[tuple[int, bytes]], cuts: list[int]) -> None:
    stream = b"".join(frame(mode, body) for mode, body in frames)
    scanner = Scanner()
    out = b""
    at = 0
    for cut in [*cuts, len(stream)]:
        out += scanner.feed(stream[at : at + cut])
        at += cut
    assert out == expected(frames)
    assert scanner.skipped == sum(mode == 2 for mode, _ in frames)


def test_consecutive_forwarded_frames_are_not_copied() -> None:
    scanner = Scanner(mark=b"")
    data = frame(0, b"abc") * 3
    assert scanner.feed(data) is data


@pytest.mark.parametrize("length", [0, -1, -(2**31), 1001, 2**31 - 1])
def test_out_of_range_length_raises_protocol_error(length: int) -> None:
    with pytest.raises(ProtocolError, match="frame of"):
        Scanner().feed(length.to_bytes(4, "big", signed=True))
