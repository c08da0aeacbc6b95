"""Users in SASL tokens, read as Kafka's servers read them."""

from __future__ import annotations

import base64
import json

import pytest

from telemetry.gateway.security.sasl_tokens import read_claim, recorded_principal


def bearer(claims: object, gs2: str = "n,,", scheme: str = "Bearer") -> bytes:
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"{gs2}\x01auth={scheme} e30.{payload}.\x01\x01".encode()


@pytest.mark.parametrize(
    ("token", "user"),
    [
        (b"n,,n=alice,r=abc", "alice"),
        (b"n,a=alice,n=alice,r=abc", "alice"),
        (b"n,,n=a=2Cb=3Dc,r=abc", "a,b=c"),
        (b"n,,m=reserved,n=alice,r=abc", "alice"),
        (b"n,,n=alice,r=abc,ext=1", "alice"),
        (b"n,,n=token-id,r=abc,tokenauth=true", None),
        (b"n,,n=token-id,r=abc,tokenauth=TRUE", None),
        (b"n,,n=alice,r=abc,tokenauth=false", "alice"),
        (b"y,,n=alice,r=abc", None),
        (b"n,,n=al=2Dice,r=abc", None),
        (b"n,,n=,r=abc", None),
        (b"n,,n=alice", None),
        ("n,,n=ålice,r=abc".encode(), None),
        (b"", None),
    ],
)
def test_user_of_scram_token(token: bytes, user: str | None) -> None:
    delegation_token = "token-id" if b"n=token-id" in token else ""
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        assert read_claim(mechanism, token, "sub") == (user, delegation_token)


@pytest.mark.parametrize(
    ("token", "user"),
    [
        (b"\0alice\0secret", "alice"),
        (b"alice\0alice\0secret", "alice"),
        ("\0ålice\0s".encode(), "ålice"),
        (b"\0alice", None),
        (b"\0alice\0secret\0more", None),
        (b"\0\0secret", None),
    ],
)
def test_user_of_plain_token(token: bytes, user: str | None) -> None:
    assert read_claim("PLAIN", token, "sub") == (user, "")


@pytest.mark.parametrize(
    ("token", "claim", "user"),
    [
        (bearer({"sub": "alice"}), "sub", "alice"),
        (bearer({"sub": "alice", "email": "a@b"}), "email", "a@b"),
        (bearer({"sub": "alice"}, gs2="n,a=alice,"), "sub", "alice"),
        (bearer({"sub": "alice"}, scheme="bearer"), "sub", "alice"),
        (bearer({"sub": "alice"}, scheme="Basic"), "sub", None),
        (bearer({"sub": 7}), "sub", None),
        (bearer({}), "sub", None),
        (bearer([]), "sub", None),
        (b"n,,\x01auth=Bearer opaque-token\x01\x01", "sub", None),
        (b"n,,\x01auth=Bearer e30.e30\x01", "sub", None),
        (b"n,,\x01auth=Bearer a.!!!.c\x01\x01", "sub", None),
    ],
)
def test_user_of_oauthbearer_token(token: bytes, claim: str, user: str | None) -> None:
    assert read_claim("OAUTHBEARER", token, claim) == (user, "")


def test_user_named_like_an_unknown_principal_is_replaced() -> None:
    assert recorded_principal(None, "GSSAPI") == "<unknown GSSAPI principal>"
    assert recorded_principal(None, "evil\nname") == "<unknown SASL principal>"
    assert recorded_principal("<unknown GSSAPI principal>", "PLAIN") == "<unknown PLAIN principal>"
    assert recorded_principal("alice", "PLAIN") == "alice"
