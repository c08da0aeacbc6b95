"""The admin client against a fake broker with given answers."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any
from uuid import UUID

import pytest
from kio.schema.api_versions.v0 import response as versions_v0
from kio.schema.errors import ErrorCode
from kio.static.primitive import i16

from quota_metrics.config.entities import Altered, FilterComponent, MatchType, QuotaAlteration, entity_of
from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.cluster import Cluster, Node
from quota_metrics.kafka.errors import (
    RefusedError,
    UnsupportedError,
)
from quota_metrics.kafka.frames import NegotiatedRequest
from tests.quota_metrics.kafka.fake_broker import (
    ALICE,
    ALTER,
    API_VERSIONS,
    DESCRIBE,
    GOOD,
    METADATA,
    FakeBroker,
    alterations,
    asking,
    body,
    broker,
    describe,
    nodes,
    quotas,
    versions,
)


def test_start_returns_the_cluster() -> None:
    cluster, port = asking(GOOD, lambda admin, fake: _with_port(admin.start(), fake))
    assert cluster == Cluster("c", (Node(1, "127.0.0.1", port, "r"),), 1)


async def _with_port(asked: Awaitable[Any], fake: FakeBroker) -> Any:
    return await asked, fake.port


def test_describe_returns_quotas_by_entity() -> None:
    assert asking(GOOD, describe) == {ALICE: {"producer_byte_rate": 10.0}}


def test_filter_is_sent_to_the_broker() -> None:
    frames: list[bytes] = []

    def answer(frame: bytes) -> bytes | None:
        frames.append(frame)
        return quotas()(frame)

    asking(
        GOOD | {DESCRIBE: answer},
        lambda admin, fake: admin.describe_client_quotas(
            [FilterComponent("user", MatchType.EXACT, "alice"), FilterComponent("client-id", MatchType.ANY)],
            strict=True,
        ),
    )
    assert frames[0].endswith(b"\x03\x05user\x00\x06alice\x00\x0aclient-id\x02\x00\x00\x01\x00")


def test_refusal_includes_kafkas_code_and_message() -> None:
    with pytest.raises(
        RefusedError, match=r"^DescribeClientQuotas was refused with CLUSTER_AUTHORIZATION_FAILED \(31\): no$"
    ):
        asking(GOOD | {DESCRIBE: quotas(ErrorCode.cluster_authorization_failed, "no")}, describe)


def test_alter_returns_a_result_per_entity() -> None:
    results = asking(
        GOOD | {ALTER: alterations(ErrorCode.invalid_request)},
        lambda admin, fake: admin.alter_client_quotas(
            [QuotaAlteration(entity_of({"user": "alice"}), {"x": 1.0, "y": None})]
        ),
    )
    assert results == [Altered(entity_of({"user": "alice"}), 42, None)]


def test_alterations_are_retried_on_the_controller() -> None:
    async def ask(admin: KafkaAdmin, fake: FakeBroker) -> Any:
        async with broker(GOOD | {ALTER: alterations(ErrorCode.none)}) as controller:
            fake.answers[METADATA] = nodes((1, fake.port), (2, controller.port), controller=2)
            await admin.start()
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
            API_VERSIONS: versions((74, highest)),
            74: lambda frame: frame[4:8] + b"\x00" + bytes(6) + b"\x01\x00",
        }
        request = NegotiatedRequest(74, {"resource_types": ()})
        return asking(GOOD | answers, lambda admin, fake: admin.send(request)).__version__

    assert [asked_with(0), asked_with(1), asked_with(2)] == [0, 1, 1]


def test_api_versions_falls_back_to_version_0() -> None:
    keys = tuple(
        versions_v0.ApiVersion(api_key=i16(key), min_version=i16(0), max_version=i16(13))
        for key in (METADATA, DESCRIBE)
    )
    old = versions_v0.ApiVersionsResponse(error_code=ErrorCode.none, api_keys=keys)

    def answer(frame: bytes) -> bytes | None:
        version = int.from_bytes(frame[2:4], "big")
        return body(old)(frame) if version == 0 else frame[4:8] + b"\x00\x23" + bytes(4)

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
