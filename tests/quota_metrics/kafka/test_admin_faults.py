"""The admin client against a broker that is silent, gone, or answers with garbage."""

from __future__ import annotations

import asyncio
import random
from typing import Any, cast

import pytest

from quota_metrics.kafka.admin import Cluster, KafkaAdmin
from quota_metrics.kafka.errors import (
    ClusterError,
    NotKafkaError,
    TimedOutError,
    UnreachableError,
)
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


def test_nobody_at_home() -> None:
    async def ask(admin: KafkaAdmin, fake: FakeBroker) -> None:
        with pytest.raises(UnreachableError, match=r"^cannot reach 127.0.0.1:1: Connection refused$"):
            await KafkaAdmin([("127.0.0.1", 1)], timeout_ms=1000).start()
        with pytest.raises(UnreachableError, match=r"^no broker answers: cannot reach .*; cannot reach "):
            await KafkaAdmin([("127.0.0.1", 1), ("127.0.0.1", 2)], timeout_ms=1000).start()

    asking(GOOD, ask)


def test_silence_ends_with_the_timeout() -> None:
    with pytest.raises(TimedOutError, match="no answer within 100 ms"):
        asking({}, start, timeout_ms=100)
    with pytest.raises(TimedOutError, match="did not answer AlterClientQuotas within 100 ms"):
        asking(GOOD, lambda admin, fake: admin.alter_client_quotas([]), timeout_ms=100)


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (lambda frame: None, UnreachableError, "closed the connection instead of answering"),
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
def test_rubbish_is_one_clear_error(answer: Answer, error: type[ClusterError], message: str) -> None:
    for api_key in (API_VERSIONS, METADATA, DESCRIBE):
        with pytest.raises(error, match=message) as caught:
            asking(GOOD | {api_key: answer}, lambda admin, fake: _both(admin), max_response_bytes=65_536)
        assert "\n" not in str(caught.value)


async def _both(admin: KafkaAdmin) -> None:
    await admin.start()
    await admin.describe_client_quotas()


def test_any_bytes_for_an_answer_are_an_error_of_the_family_or_an_answer() -> None:
    rng = random.Random(3)
    for _ in range(60):
        junk = rng.randbytes(rng.randrange(40))
        api_key = rng.choice([API_VERSIONS, METADATA, DESCRIBE])
        try:
            asking(GOOD | {api_key: lambda frame, junk=junk: frame[4:8] + junk}, lambda admin, fake: _both(admin))
        except ClusterError:
            continue


def test_a_server_of_another_protocol_is_named_as_such() -> None:
    async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async def run() -> None:
        server = await asyncio.start_server(http, "127.0.0.1", 0)
        async with server:
            admin = KafkaAdmin([server.sockets[0].getsockname()], timeout_ms=1000)
            with pytest.raises(NotKafkaError, match=r"is not a Kafka broker.*: it answered with HTTP"):
                await admin.start()

    asyncio.run(run())


def test_a_connection_that_broke_is_opened_anew() -> None:
    async def ask(admin: KafkaAdmin, fake: FakeBroker) -> Any:
        fake.answers[DESCRIBE] = lambda frame: None
        with pytest.raises(UnreachableError):
            await admin.describe_client_quotas()
        fake.answers[DESCRIBE] = quotas()
        return await admin.describe_client_quotas(), fake.asked

    described_quotas, asked = asking(GOOD, ask)
    assert described_quotas == {ALICE: {"producer_byte_rate": 10.0}}
    assert asked == [API_VERSIONS, DESCRIBE] * 2


def test_a_learned_node_answers_when_the_bootstrap_address_is_gone() -> None:
    async def run() -> Any:
        async with broker(GOOD) as second:
            async with broker(GOOD | {METADATA: nodes((2, second.port))}) as first:
                admin = KafkaAdmin([("127.0.0.1", first.port)], timeout_ms=1000)
                await admin.start()
                first.answers[DESCRIBE] = lambda frame: None
                with pytest.raises(UnreachableError):
                    await admin.describe_client_quotas()
            result = await admin.describe_client_quotas()
            await admin.close()
            return result, second.asked

    result, asked = asyncio.run(run())
    assert result == {ALICE: {"producer_byte_rate": 10.0}}
    assert asked == [API_VERSIONS, DESCRIBE]


def test_a_cancelled_request_does_not_leave_its_answer_to_the_next() -> None:
    async def ask(admin: KafkaAdmin, fake: FakeBroker) -> Any:
        await admin.start()
        del fake.answers[DESCRIBE]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await admin.describe_client_quotas()
        fake.answers[DESCRIBE] = quotas()
        return await admin.describe_client_quotas()

    assert asking(GOOD, ask) == {ALICE: {"producer_byte_rate": 10.0}}


def test_requests_at_the_same_time_each_get_their_own_answer() -> None:
    async def ask(admin: KafkaAdmin, fake: FakeBroker) -> Any:
        return await asyncio.gather(*(admin.describe_client_quotas() for _ in range(5)), admin.describe_cluster())

    *quota_answers, cluster = asking(GOOD, ask)
    assert quota_answers == [{ALICE: {"producer_byte_rate": 10.0}}] * 5
    assert cast(Cluster, cluster).cluster_id == "c"
