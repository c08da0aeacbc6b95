"""Owners of delegation tokens: requested on first use, and the principal once they are known."""

from __future__ import annotations

import asyncio

from headroom.server.cluster.cluster_metadata import TokenOwnersRefresh
from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.errors import BrokerUnreachableError
from telemetry.gateway.security.sasl_tokens import TokenOwners
from tests.kit.grpc_servers import in_loop
from tests.telemetry.gateway.dialogue import SaslDialogue, request, response

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
