"""Bytes of connections: PROXY protocol headers, then frames, which any split of the stream leaves the same."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quota_metrics.kafka.primitives import ProtocolError
from telemetry.wire.frames import FORWARD, HOLD, SKIP, UNDECIDED, WATCH, FrameScanner
from telemetry.wire.proxy_protocol import bytes_wanted, parse_header

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
AFTER = b"\x00\x00\x00\x0c rest of the stream"
ADDRESSES = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6))
PORTS = st.integers(0, 65_535)


def v1(address: object, port: int) -> bytes:
    family, to = ("TCP4", "10.0.0.1") if isinstance(address, ipaddress.IPv4Address) else ("TCP6", "::1")
    return f"PROXY {family} {address} {to} {port} 9092\r\n".encode()


def v2(address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int, tlvs: bytes = b"", command: int = 1) -> bytes:
    family = 0x11 if address.version == 4 else 0x21
    body = address.packed + bytes(len(address.packed)) + port.to_bytes(2) + (9092).to_bytes(2) + tlvs
    return SIGNATURE + bytes([0x20 | command, family]) + len(body).to_bytes(2) + body


def read(stream: bytes, version: int | None = None) -> tuple[bytes, bytes]:
    """The header as it is read from a socket, and what is left. `version`: the one that it begins like."""
    header, version = b"", version or (1 if stream.startswith(b"P") else 2)
    while wanted := bytes_wanted(header, version):
        assert wanted > 0
        if not (data := stream[len(header) : len(header) + wanted]):
            raise EOFError
        header += data
    return header, stream[len(header) :]


@given(ADDRESSES, PORTS, st.binary(max_size=100))
def test_client_is_read_and_nothing_behind_the_header(address: ipaddress.IPv4Address, port: int, tlvs: bytes) -> None:
    for header in (v1(address, port), v2(address, port), v2(address, port, tlvs)):
        assert read(header + AFTER) == (header, AFTER)
        assert parse_header(header) == (str(address), port)


@pytest.mark.parametrize(
    "header",
    [
        b"PROXY UNKNOWN\r\n",
        b"PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n",
        v2(ipaddress.ip_address("10.0.0.1"), 1, command=0),
        SIGNATURE + b"\x21\x00\x00\x00",
        SIGNATURE + b"\x21\x31\x00\xd8" + bytes(216),
    ],
)
def test_proxy_without_a_client(header: bytes) -> None:
    assert read(header + AFTER) == (header, AFTER)
    assert parse_header(header) is None


@pytest.mark.parametrize(
    "header",
    [
        b"\x00\x00\x00\x1a\x00\x12\x00\x03\x00\x00\x00\x00\x00\x08client-1",  # a Kafka client without a proxy
        b"\x16\x03\x01\x02\x00",  # TLS
        b"GET / HTTP/1.1\r\n\r\n",
        b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2" + b" " * 200,
        b"PROXY TCP4 10.0.0.1\n10.0.0.2 1 2\r\n",
        b"PROXY TCP4 ::1 ::1 1 2\r\n",
        b"PROXY TCP6 10.0.0.1 10.0.0.2 1 2\r\n",
        b"PROXY TCP4 10.0.0.1 10.0.0.2 65536 2\r\n",
        b"PROXY TCP4 10.0.0.1 10.0.0.2 -1 2\r\n",
        b"PROXY TCP4 10.0.0.1 10.0.0.2 1\r\n",
        b"PROXY UDP4 10.0.0.1 10.0.0.2 1 2\r\n",
        "PROXY TCP4 ١٠.0.0.1 10.0.0.2 1 2\r\n".encode(),
        SIGNATURE + b"\x31\x11\x00\x0c" + bytes(12),
        SIGNATURE + b"\x22\x11\x00\x0c" + bytes(12),
        SIGNATURE + b"\x21\x11\x00\x0b" + bytes(11),
        SIGNATURE + b"\x21\x21\x00\x0c" + bytes(12),
        SIGNATURE + b"\x21\x11\xff\xff",
    ],
)
def test_invalid_header_is_refused(header: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_header(read(header + bytes(4096))[0])


@given(ADDRESSES, PORTS)
def test_header_of_the_other_version_is_refused(address: ipaddress.IPv4Address, port: int) -> None:
    for header, version in ((v1(address, port), 2), (v2(address, port), 1)):
        with pytest.raises(ProtocolError, match=f"no PROXY protocol header of version {version}"):
            read(header, version)


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
