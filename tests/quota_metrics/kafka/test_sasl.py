"""SASL conversations against the examples of the RFCs and against dishonest servers."""

from __future__ import annotations

import pytest

from quota_metrics.kafka.authentication import OAuthBearer, Plain, SaslError, Scram

# RFC 7677, section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def scram(username: str = "user") -> Scram:
    return Scram("sha256", username, "pencil", nonce=lambda: NONCE)


def test_scram_sha_256_matches_the_rfc_example() -> None:
    conversation = scram().conversation()
    assert next(conversation) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert conversation.send(SERVER_FIRST) == CLIENT_FINAL
    with pytest.raises(StopIteration):
        conversation.send(SERVER_FINAL)


def test_scram_mechanism_name_escaping_and_nonces() -> None:
    assert Scram("sha512", "u", "p").name == "SCRAM-SHA-512"
    assert next(scram("a=b,c").conversation()) == b"n,,n=a=3Db=2Cc,r=rOprNGfwEbeRWgbNEkqO"
    assert next(Scram("sha256", "u", "p").conversation()) != next(Scram("sha256", "u", "p").conversation())


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b"\xff",
        b"e=other-error",
        SERVER_FIRST.replace(b"rOprNGfwEbeRWgbNEkqO%", b"another%"),
        b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        SERVER_FIRST.replace(b"i=4096", b"i=1"),
        SERVER_FIRST.replace(b"i=4096", b"i=99999999999"),
        SERVER_FIRST.replace(b"i=4096", b"i=x"),
        SERVER_FIRST.replace(b"s=W22ZaJ0", b"s=*"),
    ],
)
def test_scram_rejects_invalid_server_first_message(challenge: bytes) -> None:
    conversation = scram().conversation()
    next(conversation)
    with pytest.raises(SaslError):
        conversation.send(challenge)


@pytest.mark.parametrize("final", [b"", b"v=", b"v=AAAA", b"e=invalid-proof", b"\xff"])
def test_scram_rejects_invalid_server_signature(final: bytes) -> None:
    conversation = scram().conversation()
    next(conversation)
    conversation.send(SERVER_FIRST)
    with pytest.raises(SaslError):
        conversation.send(final)


def test_plain_sends_credentials_in_one_message() -> None:
    conversation = Plain("alice", "pässword").conversation()
    assert next(conversation) == "\0alice\0pässword".encode()
    with pytest.raises(StopIteration):
        conversation.send(b"")


def test_oauthbearer_requests_a_token_per_conversation() -> None:
    tokens = iter(["one", "two"])
    mechanism = OAuthBearer(lambda: next(tokens))
    assert next(mechanism.conversation()) == b"n,,\x01auth=Bearer one\x01\x01"
    conversation = mechanism.conversation()
    assert next(conversation) == b"n,,\x01auth=Bearer two\x01\x01"
    assert conversation.send(b'{"status":"invalid_token"}') == b"\x01"
    with pytest.raises(SaslError, match="invalid_token"):
        conversation.send(b"")


def test_secrets_are_not_in_repr() -> None:
    for mechanism in (Plain("alice", "secret"), Scram("sha256", "alice", "secret"), OAuthBearer(lambda: "secret")):
        assert "secret" not in repr(mechanism)
