"""Fetch responses are forwarded without the brokers' addresses, however their bytes arrive; kio encodes them."""

from __future__ import annotations

import dataclasses
import random
import struct
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quota_metrics.kafka.primitives import ProtocolError
from telemetry.wire.fetch_endpoints import FetchEndpoints
from tests.kit.kio_entities import encode, message_type, random_entity

VERSIONS = (16, 17, 18)


def framed(body: bytes) -> bytes:
    """With the response header: correlation id, no tagged fields."""
    return struct.pack(">iiB", len(body) + 5, 7, 0) + body


def without_endpoints(response: Any) -> bytes:
    """The frame with another tag in place of NodeEndpoints'."""
    body = encode(response)
    before = encode(dataclasses.replace(response, node_endpoints=()))[:-1]  # ends with no tagged fields
    assert body.startswith(before)
    if response.node_endpoints:
        assert body[len(before) : len(before) + 2] == b"\x01\x00"
        body = before + b"\x01\x7f" + body[len(before) + 2 :]
    return framed(body)


def in_pieces(frame: bytes, cuts: list[int]) -> bytes:
    endpoints = FetchEndpoints()
    places = sorted({0, len(frame), *(cut % len(frame) for cut in cuts)})
    return b"".join(endpoints.hidden(frame[a:b]) for a, b in pairwise(places))


@pytest.mark.parametrize("version", VERSIONS)
@given(seed=st.integers(0, 1 << 32), cuts=st.lists(st.integers(0, 1 << 16), max_size=12))
def test_only_endpoints_disappear(version: int, seed: int, cuts: list[int]) -> None:
    response = random_entity(random.Random(seed), message_type("fetch", version, "response"))
    frame = framed(encode(response))
    assert in_pieces(frame, cuts) == in_pieces(frame, list(range(len(frame)))) == without_endpoints(response)


def test_one_scanner_takes_frame_after_frame() -> None:
    entity_type = message_type("fetch", 16, "response")
    endpoints, rng = FetchEndpoints(), random.Random(1)
    for _ in range(50):
        response = random_entity(rng, entity_type)
        endpoints.begin()
        assert endpoints.hidden(framed(encode(response))) == without_endpoints(response)


@given(st.binary(max_size=300))
def test_any_bytes_keep_their_length(data: bytes) -> None:
    try:
        assert len(FetchEndpoints().hidden(data)) == len(data)
    except ProtocolError as exc:
        assert "more than 32 bits" in str(exc)
