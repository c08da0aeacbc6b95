"""The upstream connection of a client that only pushes telemetry is kept alive."""

from __future__ import annotations

import struct

import pytest

from tests.telemetry.gateway.dialogue import PUSH, Both, SaslDialogue, request, response

ANSWER = response(18, 0, 0, struct.pack(">hihhh", 0, 1, 18, 0, 4))


def test_keep_alive_is_invisible_to_client_and_meter() -> None:
    both = Both()
    both.client(request(72, 0, 1, PUSH))
    both.flush()
    both.connection.keep_alive(5)
    assert both.take_upstream() == request(18, 0, 0)
    was_idle = both.connection.idle
    assert both.broker(ANSWER[:7]) + both.broker(ANSWER[7:]) == b""
    assert (was_idle, both.connection.idle) == (False, True)
    assert both.seen == []


def test_requests_behind_keep_alive_are_answered_in_order() -> None:
    both = Both()
    both.connection.keep_alive(5)
    both.take_upstream()
    ask, reported = request(12, 4, 2), response(12, 4, 2, b"\0\0\0\0\0\0\0")
    assert both.client(request(71, 0, 1, b"get") + ask) == ask
    assert both.take_client() == b""
    assert both.broker(ANSWER + reported) == response(72, 0, 1, b"answer-71") + reported
    assert len(both.seen) == 1


def test_keep_alive_is_not_sent_during_requests() -> None:
    both = Both()
    both.client(request(12, 4, 1))
    both.connection.keep_alive(5)
    assert both.take_upstream() == b""
    both = Both()
    both.client(request(72, 0, 1, PUSH)[:20])
    both.connection.keep_alive(5)
    assert both.take_upstream() == b""


@pytest.mark.parametrize(
    ("authenticated", "after_ms", "sent"), [(False, 0, False), (True, 0, True), (True, 9_000, False)]
)
def test_keep_alive_requires_a_valid_session(authenticated: bool, after_ms: int, sent: bool) -> None:
    dialogue = SaslDialogue()
    if authenticated:
        dialogue.scram(lifetime_ms=5_000)
    dialogue.connection.keep_alive(dialogue.now_ms + after_ms)
    assert bool(dialogue.connection.to_upstream) is sent
