"""SASL through a proxied connection: what is forwarded in each state, and the client's principal afterwards."""

from __future__ import annotations

import struct

import pytest

from quota_metrics.kafka.primitives import ProtocolError
from tests.telemetry.gateway import dialogue as frames
from tests.telemetry.gateway.dialogue import SaslDialogue, framed, request, response

GET, PUSH = request(71, 0, 70), request(72, 0, 71, frames.PUSH)
FIRST, CHALLENGE = b"n,,n=alice,r=abc", b"r=abcdef,s=AAAA,i=4096"
PLAIN = b"\0alice\0alice-secret"
OAUTH = b"n,,\x01auth=Bearer e30.eyJzdWIiOiJhbGljZSJ9.\x01\x01"


@pytest.fixture
def dialogue() -> SaslDialogue:
    return SaslDialogue()


def is_refused(dialogue: SaslDialogue, data: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason) as refused:
        dialogue.client(data)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_scram_user_is_the_principal_after_the_final_response(dialogue: SaslDialogue, version: int) -> None:
    dialogue.handshake("SCRAM-SHA-512")
    dialogue.authenticate(FIRST, CHALLENGE, version=version)
    is_refused(dialogue, GET, "not authenticated")
    dialogue = SaslDialogue()
    dialogue.scram(version=version)
    assert dialogue.principal() == "alice"
    assert [dialogue.push() for _ in range(3)] == ["alice"] * 3


@pytest.mark.parametrize("asked", [GET, PUSH, request(3, 9, 1, b"topics"), request(12, 4, 1), request(0, 9, 1)])
def test_unauthenticated_requests_are_refused_but_api_versions(dialogue: SaslDialogue, asked: bytes) -> None:
    assert dialogue.client(request(18, 0, 1)) == request(18, 0, 1)
    is_refused(dialogue, asked, "not authenticated")


@pytest.mark.parametrize(
    ("mechanism", "token", "answer", "code"),
    [("PLAIN", PLAIN, b"", 58), ("OAUTHBEARER", OAUTH, b'{"status":"invalid_token"}', 0)],
)
def test_refused_client_has_no_principal(
    dialogue: SaslDialogue, mechanism: str, token: bytes, answer: bytes, code: int
) -> None:
    dialogue.handshake(mechanism)
    dialogue.authenticate(token, answer, code=code)
    is_refused(dialogue, GET, "not authenticated")


def test_refused_reauthentication_ends_the_session(dialogue: SaslDialogue) -> None:
    dialogue.scram()
    dialogue.handshake("PLAIN")
    dialogue.authenticate(PLAIN, code=58)
    is_refused(dialogue, PUSH, "session has expired")


def test_requests_pipelined_behind_a_token_are_refused(dialogue: SaslDialogue) -> None:
    dialogue.handshake("PLAIN")
    is_refused(dialogue, request(36, 1, 2, struct.pack(">i", len(PLAIN)) + PLAIN) + GET, "is answered")


def test_expired_session_requires_reauthentication(dialogue: SaslDialogue) -> None:
    dialogue.scram(lifetime_ms=5_000)
    assert (dialogue.push(), dialogue.push()) == ("alice", "alice")
    dialogue.now_ms += 4_999
    assert dialogue.push() == "alice"
    dialogue.now_ms += 1
    is_refused(dialogue, PUSH, "session has expired")
    dialogue = SaslDialogue()
    dialogue.scram(lifetime_ms=5_000)
    dialogue.push()
    dialogue.now_ms += 6_000
    dialogue.scram(lifetime_ms=5_000)
    assert dialogue.push() == "alice"


def test_oauth_user_is_the_principal_after_an_empty_response(dialogue: SaslDialogue) -> None:
    dialogue.handshake("OAUTHBEARER")
    dialogue.authenticate(OAUTH)
    assert dialogue.principal() == "alice"


def test_gssapi_principal_is_unknown_and_set_after_an_ordinary_response(dialogue: SaslDialogue) -> None:
    dialogue.handshake("GSSAPI")
    dialogue.authenticate(b"\x60token", b"challenge")
    dialogue.authenticate(b"token", b"")
    is_refused(dialogue, GET, "has not accepted")
    dialogue = SaslDialogue()
    dialogue.handshake("GSSAPI")
    dialogue.authenticate(b"\x60token", b"challenge")
    dialogue.passes(request(12, 4, 5, b"heartbeat"), response(12, 4, 5, struct.pack(">ih", 0, 0) + b"\x00"))
    assert dialogue.principal() == "<unknown GSSAPI principal>"


@pytest.mark.parametrize(
    ("mechanism", "tokens"),
    [
        ("PLAIN", [(PLAIN, b"")]),
        ("SCRAM-SHA-256", [(FIRST, CHALLENGE), (b"c=biws,r=abcdef,p=AAAA", b"v=AAAA")]),
        ("OAUTHBEARER", [(OAUTH, b"")]),
    ],
)
def test_raw_tokens_after_handshake_v0_authenticate(
    dialogue: SaslDialogue, mechanism: str, tokens: list[tuple[bytes, bytes]]
) -> None:
    dialogue.handshake(mechanism, version=0)
    for token, answer in tokens:
        dialogue.passes(framed(token), framed(answer))
    assert dialogue.principal() == "alice"


def test_gssapi_with_handshake_v0_is_refused(dialogue: SaslDialogue) -> None:
    with pytest.raises(ProtocolError, match="only after version 1"):
        dialogue.handshake("GSSAPI", version=0)


@pytest.mark.parametrize(("code", "sent"), [(33, framed(PLAIN)), (0, framed(PLAIN) * 2)])
def test_raw_token_after_a_refused_mechanism_or_a_token_is_refused(
    dialogue: SaslDialogue, code: int, sent: bytes
) -> None:
    dialogue.handshake("PLAIN", version=0, code=code)
    is_refused(dialogue, sent, "cannot")
