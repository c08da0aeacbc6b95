"""The admin client against a fake broker with given answers."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from quota_metrics.config.entities import QuotaAlteration, entity_of
from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.authentication import Security
from quota_metrics.kafka.errors import AuthenticationError, UnsupportedError
from quota_metrics.kafka.frames import NegotiatedRequest
from quota_metrics.kafka.sasl import Scram
from tests.quota_metrics.kafka.fake_broker import (
    ALICE,
    ALTER,
    API_VERSIONS,
    GOOD,
    METADATA,
    FakeBroker,
    alterations,
    asking,
    broker,
    describe,
    in_any_version,
    nodes,
    spans,
    start,
)

HANDSHAKE, AUTHENTICATE = 17, 36


def test_alterations_are_retried_on_the_controller() -> None:
    async def ask(admin: KafkaAdmin, fake: FakeBroker) -> Any:
        async with broker(GOOD | {ALTER: alterations(ErrorCode.none)}) as controller:
            fake.answers[METADATA] = nodes((1, fake.port), (2, controller.port), controller=2)
            await admin.describe_cluster()
            results = await admin.alter_client_quotas([QuotaAlteration(entity_of({"user": "alice"}), {"x": 1.0})])
            await admin.close()
            return results, controller.asked

    results, asked = asking(GOOD | {ALTER: alterations(ErrorCode.not_controller)}, ask)
    assert [result.error_code for result in results] == [0]
    assert asked == [API_VERSIONS, ALTER]


def test_unsupported_request_is_not_sent() -> None:
    async def ask(admin: KafkaAdmin, fake: FakeBroker) -> Any:
        with pytest.raises(UnsupportedError, match="does not know ListConfigResources in a version from 0 to 1"):
            await admin.send(NegotiatedRequest(74, {}))
        return fake.asked

    assert asking(GOOD, ask) == [API_VERSIONS]


def test_highest_common_version_is_sent() -> None:
    def asked_with(highest: int) -> Any:
        answers = {
            API_VERSIONS: spans({74: (0, highest)}),
            74: lambda frame: frame[4:8] + b"\x00" + bytes(6) + b"\x01\x00",
        }
        request = NegotiatedRequest(74, {"resource_types": ()})
        return asking(GOOD | answers, lambda admin, fake: admin.send(request)).__version__

    assert [asked_with(0), asked_with(1), asked_with(2)] == [0, 1, 1]


def test_api_versions_falls_back_to_version_0() -> None:
    def answer(frame: bytes) -> bytes | None:
        version = int.from_bytes(frame[2:4], "big")
        return GOOD[API_VERSIONS](frame) if version == 0 else frame[4:8] + b"\x00\x23" + bytes(4)

    assert asking(GOOD | {API_VERSIONS: answer}, describe) == {ALICE: {"producer_byte_rate": 10.0}}


def test_topic_names_are_those_that_the_cluster_tells() -> None:
    visible, hidden = UUID(int=1), UUID(int=2)
    topics: list[dict[str, Any]] = [
        {"topic_id": visible, "name": "orders"},
        {"topic_id": hidden, "name": None, "error_code": 100},
    ]
    answer = nodes((1, 9092), topics=topics)
    names = asking({**GOOD, METADATA: answer}, lambda admin, _: admin.topic_names([visible.bytes, hidden.bytes]))
    assert names == {visible.bytes: "orders"}


def test_mechanism_that_the_broker_does_not_offer_is_named_with_those_that_it_does() -> None:
    answers = {
        API_VERSIONS: spans({METADATA: (0, 13), HANDSHAKE: (0, 1), AUTHENTICATE: (0, 2)}),
        HANDSHAKE: in_any_version({"error_code": ErrorCode.unsupported_sasl_mechanism, "mechanisms": ["PLAIN"]}),
    }
    with pytest.raises(AuthenticationError, match=r"does not offer SCRAM-SHA-256: it offers PLAIN$"):
        asking(answers, start, security=Security(sasl=Scram("sha256", "alice", "secret")))
