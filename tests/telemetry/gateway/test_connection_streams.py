"""Connections as byte streams: arbitrary chunks, random bytes, and a connection without a broker."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quota_metrics.kafka.primitives import ProtocolError
from telemetry.gateway.connection import ConnectionLimits
from tests.telemetry.gateway.dialogue import PUSH, Both, framed, produce, produced, request, response

DIALOGUE = [
    (request(18, 3, 1, b"\x05java\x061.2.3\x00"), framed(struct.pack(">ih", 1, 0) + b"\x01\0\0\0\0\x00")),
    (
        request(3, 9, 2, b"topics"),
        response(3, 9, 2, struct.pack(">iBi3siH", 0, 2, 1, b"\x03k1", 9, 0) + b"rest"),
    ),
    (produce(9, 3, -1), produced(9, 3, 5)),
    (produce(8, 4, 0), b""),
    (request(71, 0, 5, b"get"), None),
    (request(1, 12, 6, b"fetch"), response(1, 12, 6, struct.pack(">i", 9) + b"r" * 300)),
    (request(72, 0, 7, PUSH), None),
    (request(1, 12, 8, b"fetch"), response(1, 12, 8, struct.pack(">i", 0) + b"s" * 30)),
]


def played(cuts: list[int]) -> tuple[bytes, bytes, list[int]]:
    """Feeds both streams through the connection in pieces, and flushes on each request to flush."""
    both = Both()
    ups = downs = b""
    sent = b"".join(ask for ask, _ in DIALOGUE)
    reported = b"".join(answer for _, answer in DIALOGUE if answer)
    at = 0
    for cut in [*cuts, len(sent)]:
        ups += both.client(sent[at : at + cut])
        at += cut
    downs += both.take_client()
    at = 0
    for index, cut in enumerate([*cuts, len(reported)]):
        downs += both.broker(reported[at : at + cut])
        at += cut
        if both.connection.unflushed and index % 2:
            downs += both.flush()
    if both.connection.unflushed:
        downs += both.flush()
    return ups, downs, [s.throttle_ms for s in both.seen]


@given(st.lists(st.integers(0, 60), max_size=40))
def test_dialogue_does_not_depend_on_chunk_boundaries(cuts: list[int]) -> None:
    assert played(cuts) == played([])


# Without a broker


class Alone(Both):
    """A connection without a broker: the gateway answers its requests or closes it."""

    def __init__(self) -> None:
        super().__init__(
            ConnectionLimits(max_held_request_bytes=1000),
            local={key: lambda version, body: b"%d:" % version + body for key in (3, 18, 32)},
        )

    def ask(self, data: bytes) -> bytes:
        assert self.client(data) == b""
        return self.take_client()


@pytest.mark.parametrize(("key", "version"), [(3, 1), (3, 12), (18, 0), (18, 3), (32, 1), (32, 4)])
def test_known_requests_are_answered_locally(key: int, version: int) -> None:
    alone, body = Alone(), b"\x05java\x063.7.0\x00"
    assert alone.ask(request(key, version, 7, body)) == response(key, version, 7, b"%d:" % version + body)
    assert alone.connection.idle


def test_local_answers_keep_request_order_behind_a_push() -> None:
    alone = Alone()
    assert alone.ask(request(72, 0, 1, PUSH) + request(3, 12, 2, b"asked")) == b""
    assert alone.flush() == response(72, 0, 1, b"answer-72") + response(3, 12, 2, b"12:asked")


@pytest.mark.parametrize("key", [0, 1, 12, 44])
def test_unsupported_request_without_broker_raises_protocol_error(key: int) -> None:
    with pytest.raises(ProtocolError, match="without a broker"):
        Alone().client(request(key, 1, 1, b"body"))


def test_oversize_request_without_broker_raises_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="Metadata request of"):
        Alone().client(request(3, 12, 1, bytes(2000)))
