"""SASL through a proxied connection: what is forwarded in each state, and the client's principal afterwards."""

from __future__ import annotations

import struct

import pytest

from quota_metrics.kafka.primitives import ProtocolError
from tests.telemetry.gateway.dialogue import framed, request, response
from tests.telemetry.gateway.sasl_dialogue import GET, PUSH, Dialogue

FIRST = b"n,,n=alice,r=abc"
PLAIN = b"\0alice\0alice-secret"


@pytest.mark.parametrize("version", [0, 1, 2])
def test_scram_user_is_the_principal_after_the_final_response(version: int) -> None:
    dialogue = Dialogue()
    dialogue.handshake("SCRAM-SHA-512")
    dialogue.authenticate(FIRST, b"r=abcdef,s=AAAA,i=4096", version=version)
    with pytest.raises(ProtocolError, match="not authenticated"):
        dialogue.client(GET)
    dialogue = Dialogue()
    dialogue.scram(version=version)
    assert dialogue.principal() == "alice"
    assert [dialogue.push() for _ in range(3)] == ["alice"] * 3


@pytest.mark.parametrize("asked", [GET, PUSH, request(3, 9, 1, b"topics"), request(12, 4, 1), request(0, 9, 1)])
def test_unauthenticated_requests_are_refused(asked: bytes) -> None:
    dialogue = Dialogue()
    with pytest.raises(ProtocolError, match="not authenticated"):
        dialogue.client(asked)


def test_api_versions_passes_before_authentication() -> None:
    dialogue = Dialogue()
    asked = request(18, 0, 1)
    assert dialogue.client(asked) == asked


def test_wrong_password_leaves_no_principal() -> None:
    dialogue = Dialogue()
    dialogue.handshake("PLAIN")
    dialogue.authenticate(PLAIN, code=58)
    with pytest.raises(ProtocolError, match="not authenticated"):
        dialogue.client(GET)


def test_requests_pipelined_behind_a_token_are_refused() -> None:
    dialogue = Dialogue()
    dialogue.handshake("PLAIN")
    token = request(36, 1, 2, struct.pack(">i", len(PLAIN)) + PLAIN)
    with pytest.raises(ProtocolError, match="is answered"):
        dialogue.client(token + GET)


def test_expired_session_requires_reauthentication() -> None:
    dialogue = Dialogue()
    dialogue.scram(lifetime_ms=5_000)
    assert (dialogue.push(), dialogue.push()) == ("alice", "alice")
    dialogue.now_ms += 4_999
    assert dialogue.push() == "alice"
    dialogue.now_ms += 1
    with pytest.raises(ProtocolError, match="session has expired"):
        dialogue.client(PUSH)
    dialogue = Dialogue()
    dialogue.scram(lifetime_ms=5_000)
    dialogue.push()
    dialogue.now_ms += 6_000
    dialogue.scram(lifetime_ms=5_000)
    assert dialogue.push() == "alice"


def test_refused_reauthentication_ends_the_session() -> None:
    dialogue = Dialogue()
    dialogue.scram()
    dialogue.handshake("PLAIN")
    dialogue.authenticate(PLAIN, code=58)
    with pytest.raises(ProtocolError):
        dialogue.client(PUSH)


def test_oauth_user_is_the_principal_after_an_empty_response() -> None:
    token = b"n,,\x01auth=Bearer e30.eyJzdWIiOiJhbGljZSJ9.\x01\x01"
    dialogue = Dialogue()
    dialogue.handshake("OAUTHBEARER")
    dialogue.authenticate(token, b'{"status":"invalid_token"}')
    with pytest.raises(ProtocolError, match="not authenticated"):
        dialogue.client(GET)
    dialogue = Dialogue()
    dialogue.handshake("OAUTHBEARER")
    dialogue.authenticate(token)
    assert dialogue.principal() == "alice"


def test_gssapi_principal_is_unknown_and_set_after_an_ordinary_response() -> None:
    dialogue = Dialogue()
    dialogue.handshake("GSSAPI")
    dialogue.authenticate(b"\x60token", b"challenge")
    dialogue.authenticate(b"token", b"")
    with pytest.raises(ProtocolError, match="has not accepted"):
        dialogue.client(GET)
    dialogue = Dialogue()
    dialogue.handshake("GSSAPI")
    dialogue.authenticate(b"\x60token", b"challenge")
    dialogue.passes(request(12, 4, 5, b"heartbeat"), response(12, 4, 5, struct.pack(">ih", 0, 0) + b"\x00"))
    assert dialogue.principal() == "<unknown GSSAPI principal>"


@pytest.mark.parametrize(
    ("mechanism", "tokens"),
    [
        ("PLAIN", [(PLAIN, b"")]),
        ("SCRAM-SHA-256", [(FIRST, b"r=abcdef,s=AAAA,i=4096"), (b"c=biws,r=abcdef,p=AAAA", b"v=AAAA")]),
        ("OAUTHBEARER", [(b"n,,\x01auth=Bearer e30.eyJzdWIiOiJhbGljZSJ9.\x01\x01", b"")]),
    ],
)
def test_raw_tokens_after_handshake_v0_authenticate(mechanism: str, tokens: list[tuple[bytes, bytes]]) -> None:
    dialogue = Dialogue()
    dialogue.handshake(mechanism, version=0)
    for token, answer in tokens:
        dialogue.passes(framed(token), framed(answer))
    assert dialogue.principal() == "alice"


def test_gssapi_with_handshake_v0_is_refused() -> None:
    with pytest.raises(ProtocolError, match="only after version 1"):
        Dialogue().handshake("GSSAPI", version=0)


def test_refused_mechanism_does_not_start_authentication() -> None:
    dialogue = Dialogue()
    dialogue.handshake("PLAIN", version=0, code=33)
    with pytest.raises(ProtocolError):
        dialogue.client(framed(PLAIN))


def test_error_text_contains_no_password() -> None:
    dialogue = Dialogue()
    dialogue.handshake("PLAIN", version=0)
    with pytest.raises(ProtocolError) as refused:
        dialogue.client(framed(PLAIN) + framed(PLAIN))
    assert "secret" not in str(refused.value)
