"""PROXY protocol headers: valid ones of both versions, and what hostile peers send."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quota_metrics.kafka.primitives import ProtocolError
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
