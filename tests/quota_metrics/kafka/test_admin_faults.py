"""The admin client against a broker that is silent, unreachable or sends invalid responses."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.cluster import Cluster
from quota_metrics.kafka.errors import BrokerUnreachableError, ClusterError, NotKafkaError, TimedOutError
from tests.quota_metrics.kafka.fake_broker import (
    ALICE,
    API_VERSIONS,
    DESCRIBE,
    GOOD,
    METADATA,
    Answer,
    FakeBroker,
    asking,
    broker,
    nodes,
    quotas,
    start,
)


def test_silent_broker_raises_timed_out_error() -> None:
    with pytest.raises(TimedOutError, match="no answer within 100 ms"):
        asking({}, start, timeout_ms=100)
    with pytest.raises(TimedOutError, match="did not answer AlterClientQuotas within 100 ms"):
        asking(GOOD, lambda admin, fake: admin.alter_client_quotas([]), timeout_ms=100)


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (lambda frame: None, BrokerUnreachableError, "closed the connection instead of answering"),
        (lambda frame: b"", NotKafkaError, "is not a Kafka broker"),
        (lambda frame: bytes(70_000), NotKafkaError, "is not a Kafka broker"),
        (lambda frame: b"\x7f\xff\xff\xff", NotKafkaError, "answered 2147483647 when"),
        (lambda frame: frame[4:8], NotKafkaError, "with what cannot be read"),
        (
            lambda frame: frame[4:8] + b"\x00" + bytes(6) + b"\xff\xff\xff\xff\x0f",
            NotKafkaError,
            "with what cannot be read",
        ),
    ],
)
def test_malformed_response_raises_one_line_cluster_error(
    answer: Answer, error: type[ClusterError], message: str
) -> None:
    for api_key in (API_VERSIONS, METADATA, DESCRIBE):
        with pytest.raises(error, match=message) as caught:
            asking(GOOD | {api_key: answer}, lambda admin, fake: _both(admin), max_response_bytes=65_536)
        assert "\n" not in str(caught.value)


async def _both(admin: KafkaAdmin) -> None:
    await admin.describe_cluster()
    await admin.describe_client_quotas()


def test_http_server_raises_not_kafka_error() -> None:
    async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async def run() -> None:
        server = await asyncio.start_server(http, "127.0.0.1", 0)
        async with server:
            admin = KafkaAdmin([server.sockets[0].getsockname()], timeout_ms=1000)
            with pytest.raises(NotKafkaError, match=r"is not a Kafka broker.*: it answered with HTTP"):
                await admin.describe_cluster()

    asyncio.run(run())


def test_closed_connection_is_reopened() -> None:
    async def ask(admin: KafkaAdmin, fake: FakeBroker) -> Any:
        fake.answers[DESCRIBE] = lambda frame: None
        with pytest.raises(BrokerUnreachableError):
            await admin.describe_client_quotas()
        fake.answers[DESCRIBE] = quotas()
        return await admin.describe_client_quotas(), fake.asked

    described_quotas, asked = asking(GOOD, ask)
    assert described_quotas == {ALICE: {"producer_byte_rate": 10.0}}
    assert asked == [API_VERSIONS, DESCRIBE] * 2


def test_discovered_node_is_used_when_bootstrap_is_gone() -> None:
    async def run() -> Any:
        async with broker(GOOD) as second:
            async with broker(GOOD | {METADATA: nodes((2, second.port))}) as first:
                admin = KafkaAdmin([("127.0.0.1", first.port)], timeout_ms=1000)
                await admin.describe_cluster()
                first.answers[DESCRIBE] = lambda frame: None
                with pytest.raises(BrokerUnreachableError):
                    await admin.describe_client_quotas()
            result = await admin.describe_client_quotas()
            await admin.close()
            return result, second.asked

    result, asked = asyncio.run(run())
    assert result == {ALICE: {"producer_byte_rate": 10.0}}
    assert asked == [API_VERSIONS, DESCRIBE]


def test_cancelled_request_does_not_affect_the_next() -> None:
    async def ask(admin: KafkaAdmin, fake: FakeBroker) -> Any:
        await admin.describe_cluster()
        del fake.answers[DESCRIBE]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await admin.describe_client_quotas()
        fake.answers[DESCRIBE] = quotas()
        return await admin.describe_client_quotas()

    assert asking(GOOD, ask) == {ALICE: {"producer_byte_rate": 10.0}}


def test_concurrent_requests_get_their_own_responses() -> None:
    async def ask(admin: KafkaAdmin, fake: FakeBroker) -> Any:
        return await asyncio.gather(*(admin.describe_client_quotas() for _ in range(5)), admin.describe_cluster())

    *quota_answers, cluster = asking(GOOD, ask)
    assert quota_answers == [{ALICE: {"producer_byte_rate": 10.0}}] * 5
    assert cast(Cluster, cluster).cluster_id == "c"
