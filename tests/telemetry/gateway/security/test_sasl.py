"""SASL through a proxied connection: users in tokens, what is forwarded in each state, owners of delegation tokens."""

import asyncio
import base64
import json
import struct

import pytest

from headroom.server.cluster.cluster_metadata import TokenOwnersRefresh
from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.errors import BrokerUnreachableError
from quota_metrics.kafka.primitives import ProtocolError
from telemetry.gateway.security.sasl_tokens import TokenOwners, read_claim, recorded_principal
from tests.kit.grpc_servers import in_loop
from tests.telemetry.gateway import dialogue as frames
from tests.telemetry.gateway.dialogue import SaslDialogue, framed, request, response


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
    ("token", "claim", "user"),
    [
        (b"\0alice\0secret", None, "alice"),
        (b"alice\0alice\0secret", None, "alice"),
        ("\0ålice\0s".encode(), None, "ålice"),
        (b"\0alice", None, None),
        (b"\0alice\0secret\0more", None, None),
        (b"\0\0secret", None, None),
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
def test_user_of_plain_token_and_of_the_claim_of_an_oauthbearer_token(
    token: bytes, claim: str | None, user: str | None
) -> None:
    assert read_claim("OAUTHBEARER" if claim else "PLAIN", token, claim or "sub") == (user, "")


def test_user_named_like_an_unknown_principal_is_replaced() -> None:
    assert recorded_principal(None, "GSSAPI") == "<unknown GSSAPI principal>"
    assert recorded_principal(None, "evil\nname") == "<unknown SASL principal>"
    assert recorded_principal("<unknown GSSAPI principal>", "PLAIN") == "<unknown PLAIN principal>"
    assert recorded_principal("alice", "PLAIN") == "alice"


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
    dialogue.session_s += 4.9
    dialogue.now_ms += 86_400_000  # a step of the wall clock, which ends no session and prolongs none
    assert dialogue.push() == "alice"
    dialogue.session_s += 0.2
    is_refused(dialogue, PUSH, "session has expired")
    dialogue = SaslDialogue()
    dialogue.scram(lifetime_ms=5_000)
    dialogue.push()
    dialogue.session_s += 6
    dialogue.scram(lifetime_ms=5_000)
    assert dialogue.push() == "alice"


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
    for error in (35, 0):  # Kafka answers ApiVersions before the last token with an error
        dialogue = SaslDialogue()
        dialogue.handshake("GSSAPI")
        dialogue.authenticate(b"\x60token", b"challenge")
        dialogue.client(request(18, 0, 5))
        dialogue.broker(response(18, 0, 5, struct.pack(">hi", error, 0)))
        if error:
            is_refused(dialogue, GET, "has not accepted")
    assert dialogue.push() == "<unknown GSSAPI principal>"
    with pytest.raises(ProtocolError, match="only after version 1"):
        SaslDialogue().handshake("GSSAPI", version=0)


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


@pytest.mark.parametrize(("code", "sent"), [(33, framed(PLAIN)), (0, framed(PLAIN) * 2)])
def test_raw_token_after_a_refused_mechanism_or_a_token_is_refused(
    dialogue: SaslDialogue, code: int, sent: bytes
) -> None:
    dialogue.handshake("PLAIN", version=0, code=code)
    is_refused(dialogue, sent, "cannot")


UNKNOWN = "<unknown SCRAM-SHA-256 principal>"


def test_owner_is_the_principal_once_known_and_until_reauthentication() -> None:
    asked: list[None] = []
    owners = TokenOwners(lambda: asked.append(None))
    dialogue = SaslDialogue(owners.owner_of)
    dialogue.scram("token-1", extensions=",tokenauth=true")
    assert [dialogue.push(), dialogue.principal(), dialogue.push()] == [UNKNOWN] * 3
    assert len(asked) == 1
    owners.replace({"token-1": "alice"})
    heartbeat, answer = request(12, 4, 1, b"heartbeat"), response(12, 4, 1, b"\x00" * 7)
    dialogue.passes(heartbeat, answer)
    assert [dialogue.push(), dialogue.push(), dialogue.principal()] == ["alice"] * 3
    dialogue.scram("bob")
    assert [dialogue.push(), dialogue.push()] == ["bob"] * 2
    dialogue.scram("token-1", extensions=",tokenauth=true")
    assert dialogue.push() == "alice"


def test_unknown_token_is_requested_once_per_refresh() -> None:
    asked: list[None] = []
    owners = TokenOwners(lambda: asked.append(None))
    for number in range(5_000):
        assert owners.owner_of(f"token-{number % 2_000}") is None
    assert len(asked) == 1_000
    owners.replace({})
    owners.owner_of("token-1")
    assert len(asked) == 1_001


@in_loop
async def test_failed_refresh_keeps_known_owners() -> None:
    answers: list[dict[str, str] | BrokerUnreachableError] = [
        {"one": "alice"},
        BrokerUnreachableError("away"),
        {"one": "alice", "two": "bob"},
    ]

    class Admin(KafkaAdmin):
        async def describe_token_owners(self) -> dict[str, str]:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

    refresh = TokenOwnersRefresh(Admin([("127.0.0.1", 1)]), again_after_s=0.01)
    owners = refresh.owners
    for reading, expected in enumerate(({"one": "alice"}, {"one": "alice"}, {"one": "alice", "two": "bob"}), 1):
        assert owners.owner_of("two") is None
        while owners.readings < reading:
            await asyncio.sleep(0.001)
        assert owners.owners == expected
    assert owners.owner_of("two") == "bob"
    refresh.close()
