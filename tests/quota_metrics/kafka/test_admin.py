"""The admin client against a broker that answers as reported: well, with rubbish, late, or not at all."""

from __future__ import annotations

import asyncio
import datetime
import io
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from kio.schema.alter_client_quotas.v1 import response as altered
from kio.schema.api_versions.v0 import response as versions_v0
from kio.schema.api_versions.v3 import response as versions_v3
from kio.schema.describe_client_quotas.v1 import response as described
from kio.schema.errors import ErrorCode
from kio.schema.list_config_resources import v0 as list_v0
from kio.schema.list_config_resources import v1 as list_v1
from kio.schema.metadata.v8 import response as metadata
from kio.schema.types import BrokerId
from kio.serial import entity_writer
from kio.static.primitive import f64, i16, i32, i32Timedelta

from quota_metrics.config.entities import Alteration, Altered, FilterComponent, MatchType, entity_of
from quota_metrics.kafka.admin import Cluster, KafkaAdmin, Node
from quota_metrics.kafka.errors import (
    ClusterError,
    NotKafkaError,
    RefusedError,
    TimedOutError,
    UnreachableError,
    UnsupportedError,
)

METADATA, API_VERSIONS, DESCRIBE, ALTER = 3, 18, 48, 49
NO_THROTTLE = i32Timedelta.parse(datetime.timedelta(0))
ALICE = entity_of({"user": "alice", "client-id": None})

Answer = Callable[[bytes], bytes | None]  # the request's frame -> what follows the length, or None: hang up


def body(entity: Any) -> Answer:
    """An answer with this response, under the correlation id and header that belong to the request."""
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    tags = b"\x00" if entity.__header_schema__.__version__ == 1 else b""
    return lambda frame: frame[4:8] + tags + buffer.getvalue()


def versions(*apis: tuple[int, int]) -> Answer:
    keys = tuple(
        versions_v3.ApiVersion(api_key=i16(key), min_version=i16(0), max_version=i16(high)) for key, high in apis
    )
    return body(versions_v3.ApiVersionsResponse(error_code=ErrorCode.none, api_keys=keys, throttle_time=NO_THROTTLE))


def nodes(*brokers: tuple[int, int], controller: int = 1) -> Answer:
    return body(
        metadata.MetadataResponse(
            throttle_time=NO_THROTTLE,
            brokers=tuple(
                metadata.MetadataResponseBroker(node_id=BrokerId(node), host="127.0.0.1", port=i32(port), rack="r")
                for node, port in brokers
            ),
            cluster_id="c",
            controller_id=BrokerId(controller),
            topics=(),
        )
    )


def quotas(code: ErrorCode = ErrorCode.none, message: str | None = None) -> Answer:
    entry = described.EntryData(
        entity=(
            described.EntityData(entity_type="client-id", entity_name=None),
            described.EntityData(entity_type="user", entity_name="alice"),
        ),
        values=(described.ValueData(key="producer_byte_rate", value=f64(10.0)),),
    )
    return body(
        described.DescribeClientQuotasResponse(
            throttle_time=NO_THROTTLE,
            error_code=code,
            error_message=message,
            entries=None if code else (entry,),
        )
    )


def alterations(code: ErrorCode) -> Answer:
    entity = (altered.EntityData(entity_type="user", entity_name="alice"),)
    entry = altered.EntryData(error_code=code, error_message=None, entity=entity)
    return body(altered.AlterClientQuotasResponse(throttle_time=NO_THROTTLE, entries=(entry,)))


GOOD = {API_VERSIONS: versions((METADATA, 13), (DESCRIBE, 1), (ALTER, 1)), DESCRIBE: quotas()}


class FakeBroker:
    """Answers each API as its table says; an API that is not in it is never answered."""

    def __init__(self, answers: dict[int, Answer]) -> None:
        self.answers = dict(answers)
        self.asked: list[int] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                frame = len(frame).to_bytes(4, "big") + frame
                self.asked.append(int.from_bytes(frame[4:6], "big"))
                if not self.reply(frame, writer):
                    break
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):  # the loop ends
            return
        finally:
            writer.close()

    def reply(self, frame: bytes, writer: asyncio.StreamWriter) -> bool:
        answer = self.answers.get(self.asked[-1])
        if answer is not None:
            content = answer(frame[4:])
            if content is None:
                return False
            writer.write(len(content).to_bytes(4, "big") + content)
        return True


@asynccontextmanager
async def broker(answers: dict[int, Answer]) -> AsyncIterator[FakeBroker]:
    fake = FakeBroker(answers)
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    async with server:
        fake.port = server.sockets[0].getsockname()[1]
        fake.answers.setdefault(METADATA, nodes((1, fake.port)))
        yield fake


def asking(answers: dict[int, Answer], ask: Callable[[KafkaAdmin, FakeBroker], Awaitable[Any]], **options: Any) -> Any:
    """What `ask` returns or raises at a client of a fake broker; the client is closed then."""

    async def run() -> Any:
        async with broker(answers) as fake:
            admin = KafkaAdmin([("127.0.0.1", fake.port)], **{"timeout_ms": 2000} | options)
            try:
                return await ask(admin, fake)
            finally:
                await admin.close()

    return asyncio.run(run())


async def start(admin: KafkaAdmin, fake: FakeBroker) -> Cluster:
    return await admin.start()


async def describe(admin: KafkaAdmin, fake: FakeBroker) -> Any:
    return await admin.describe_client_quotas()


def test_start_learns_the_nodes() -> None:
    cluster, port = asking(GOOD, lambda admin, fake: _with_port(admin.start(), fake))
    assert cluster == Cluster("c", (Node(1, "127.0.0.1", port, "r"),), 1)


async def _with_port(asked: Awaitable[Any], fake: FakeBroker) -> Any:
    return await asked, fake.port


def test_quotas_are_described_by_entity() -> None:
    assert asking(GOOD, describe) == {ALICE: {"producer_byte_rate": 10.0}}


def test_the_filter_goes_over_the_wire() -> None:
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


def test_a_refusal_tells_kafkas_code_and_message() -> None:
    with pytest.raises(
        RefusedError, match=r"^DescribeClientQuotas was refused with CLUSTER_AUTHORIZATION_FAILED \(31\): no$"
    ):
        asking(GOOD | {DESCRIBE: quotas(ErrorCode.cluster_authorization_failed, "no")}, describe)


def test_alterations_tell_each_entitys_outcome() -> None:
    results = asking(
        GOOD | {ALTER: alterations(ErrorCode.invalid_request)},
        lambda admin, fake: admin.alter_client_quotas(
            [Alteration(entity_of({"user": "alice"}), {"x": 1.0, "y": None})]
        ),
    )
    assert results == [Altered(entity_of({"user": "alice"}), 42, None)]


def test_alterations_go_to_the_controller_when_the_broker_does_not_forward() -> None:
    async def ask(admin: KafkaAdmin, fake: FakeBroker) -> Any:
        async with broker(GOOD | {ALTER: alterations(ErrorCode.none)}) as controller:
            fake.answers[METADATA] = nodes((1, fake.port), (2, controller.port), controller=2)
            await admin.start()
            results = await admin.alter_client_quotas([Alteration(entity_of({"user": "alice"}), {"x": 1.0})])
            await admin.close()
            return results, controller.asked

    results, asked = asking(GOOD | {ALTER: alterations(ErrorCode.not_controller)}, ask)
    assert [result.error_code for result in results] == [0]
    assert asked == [API_VERSIONS, ALTER]


def test_a_request_in_no_version_of_the_broker_is_not_sent() -> None:
    async def ask(admin: KafkaAdmin, fake: FakeBroker) -> Any:
        with pytest.raises(UnsupportedError, match="does not know ListConfigResources in version 0"):
            await admin.send(list_v0.ListConfigResourcesRequest())
        return fake.asked

    assert asking(GOOD, ask) == [API_VERSIONS]


def test_the_best_version_that_the_broker_knows_is_sent() -> None:
    def asked_with(highest: int) -> Any:
        answers = {
            API_VERSIONS: versions((74, highest)),
            74: lambda frame: frame[4:8] + b"\x00" + bytes(6) + b"\x01\x00",
        }
        requests = (list_v1.ListConfigResourcesRequest(resource_types=()), list_v0.ListConfigResourcesRequest())
        return asking(GOOD | answers, lambda admin, fake: admin.send(*requests)).__version__

    assert [asked_with(0), asked_with(1), asked_with(2)] == [0, 1, 1]


def test_a_broker_that_knows_only_old_api_versions_is_asked_again_in_version_0() -> None:
    keys = tuple(
        versions_v0.ApiVersion(api_key=i16(key), min_version=i16(0), max_version=i16(13))
        for key in (METADATA, DESCRIBE)
    )
    old = versions_v0.ApiVersionsResponse(error_code=ErrorCode.none, api_keys=keys)

    def answer(frame: bytes) -> bytes | None:
        version = int.from_bytes(frame[2:4], "big")
        return body(old)(frame) if version == 0 else frame[4:8] + b"\x00\x23" + bytes(4)

    assert asking(GOOD | {API_VERSIONS: answer}, describe) == {ALICE: {"producer_byte_rate": 10.0}}


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
