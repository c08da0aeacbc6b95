"""The admin client against fake brokers: given answers, invalid ones, silence; the first broker that answers."""

import asyncio
from typing import Any, cast
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from quota_metrics.config.entities import QuotaAlteration, entity_of
from quota_metrics.kafka import admin
from quota_metrics.kafka.admin import Address, KafkaAdmin, first_to_answer
from quota_metrics.kafka.authentication import Scram, Security
from quota_metrics.kafka.client_metrics import read_subscriptions
from quota_metrics.kafka.cluster import Cluster
from quota_metrics.kafka.connection import KafkaConnection
from quota_metrics.kafka.errors import BrokerUnreachableError, ClusterError, RefusedError, UnsupportedError
from quota_metrics.kafka.frames import NegotiatedRequest
from tests.quota_metrics.kafka.fake_broker import (
    ALICE,
    ALTER,
    API_VERSIONS,
    DESCRIBE,
    GOOD,
    METADATA,
    QUOTAS,
    Answer,
    FakeBroker,
    asking,
    broker,
    in_any_version,
    nodes,
    spans,
)

HANDSHAKE, AUTHENTICATE = 17, 36


def altered(code: int) -> Answer:
    return in_any_version(
        {"entries": [{"error_code": code, "entity": [{"entity_type": "user", "entity_name": "alice"}]}]}
    )


def test_alterations_are_retried_on_the_controller() -> None:
    async def ask(admin: KafkaAdmin, fake: FakeBroker) -> Any:
        async with broker(GOOD | {ALTER: altered(ErrorCode.none)}) as controller:
            fake.answers[METADATA] = nodes((1, fake.port), (2, controller.port), controller=2)
            await admin.describe_cluster()
            results = await admin.alter_client_quotas([QuotaAlteration(entity_of({"user": "alice"}), {"x": 1.0})])
            await admin.aclose()
            return results, controller.asked

    results, asked = asking(GOOD | {ALTER: altered(ErrorCode.not_controller)}, ask)
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

    assert asking(GOOD | {API_VERSIONS: answer}, lambda admin, _: admin.describe_client_quotas()) == {
        ALICE: {"producer_byte_rate": 10.0}
    }


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
    with pytest.raises(ClusterError, match=r"does not offer SCRAM-SHA-256: it offers PLAIN$"):
        asking(
            answers,
            lambda admin, _: admin.describe_cluster(),
            security=Security(sasl=Scram("sha256", "alice", "secret")),
        )


def test_silent_broker_times_out() -> None:
    with pytest.raises(ClusterError, match="no answer within 100 ms"):
        asking({}, lambda admin, _: admin.describe_cluster(), timeout_ms=100)
    with pytest.raises(ClusterError, match="did not answer AlterClientQuotas within 100 ms"):
        asking(GOOD, lambda admin, fake: admin.alter_client_quotas([]), timeout_ms=100)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda frame: None, "closed the connection instead of answering"),
        (lambda frame: b"", "is not a Kafka broker"),
        (lambda frame: bytes(70_000), "is not a Kafka broker"),
        (lambda frame: b"\x7f\xff\xff\xff", "answered 2147483647 when"),
        (lambda frame: frame[4:8], "with what cannot be read"),
        (
            lambda frame: frame[4:8] + b"\x00" + bytes(6) + b"\xff\xff\xff\xff\x0f",
            "with what cannot be read",
        ),
    ],
)
def test_malformed_response_raises_one_line_cluster_error(answer: Answer, message: str) -> None:
    for api_key in (API_VERSIONS, METADATA, DESCRIBE):
        with pytest.raises(ClusterError, match=message) as caught:
            asking(GOOD | {api_key: answer}, lambda admin, fake: _both(admin), max_response_bytes=65_536)
        assert "\n" not in str(caught.value)


async def _both(admin: KafkaAdmin) -> None:
    await admin.describe_cluster()
    await admin.describe_client_quotas()


def test_http_server_is_named() -> None:
    async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async def run() -> None:
        server = await asyncio.start_server(http, "127.0.0.1", 0)
        async with server:
            admin = KafkaAdmin([server.sockets[0].getsockname()], timeout_ms=1000)
            with pytest.raises(ClusterError, match=r"is not a Kafka broker.*: it answered with HTTP"):
                await admin.describe_cluster()

    asyncio.run(run())


def test_closed_connection_is_reopened() -> None:
    async def ask(admin: KafkaAdmin, fake: FakeBroker) -> Any:
        fake.answers[DESCRIBE] = lambda frame: None
        with pytest.raises(BrokerUnreachableError):
            await admin.describe_client_quotas()
        fake.answers[DESCRIBE] = QUOTAS
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
            await admin.aclose()
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
        fake.answers[DESCRIBE] = QUOTAS
        return await admin.describe_client_quotas()

    assert asking(GOOD, ask) == {ALICE: {"producer_byte_rate": 10.0}}


def test_concurrent_requests_get_their_own_responses() -> None:
    async def ask(admin: KafkaAdmin, fake: FakeBroker) -> Any:
        return await asyncio.gather(*(admin.describe_client_quotas() for _ in range(5)), admin.describe_cluster())

    *quota_answers, cluster = asking(GOOD, ask)
    assert quota_answers == [{ALICE: {"producer_byte_rate": 10.0}}] * 5
    assert cast(Cluster, cluster).cluster_id == "c"


SILENT, REFUSES, ANSWERS, SLOW = (("broker", port) for port in range(4))


class Brokers:
    def __init__(self) -> None:
        self.tried: list[Address] = []
        self.cancelled: list[Address] = []

    async def connect(self, address: Address) -> KafkaConnection:
        self.tried.append(address)
        try:
            if address == SILENT:
                await asyncio.Event().wait()
            if address == SLOW:
                await asyncio.sleep(0.2)
            if address == REFUSES:
                raise ClusterError(f"cannot reach {address}")
        except asyncio.CancelledError:
            self.cancelled.append(address)
            raise
        return cast(KafkaConnection, address)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "_NEXT_BROKER_AFTER_S", 0.02)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(
    "addresses",
    [[ANSWERS], [SILENT] * 3 + [ANSWERS], [REFUSES, SILENT, ANSWERS], [SLOW, SILENT], [SILENT, SLOW, REFUSES]],
)
def test_first_answering_broker_wins_and_others_are_cancelled(addresses: list[Address]) -> None:
    brokers = Brokers()
    address, connection = asyncio.run(first_to_answer(addresses, brokers.connect))
    assert address == cast(Address, connection)
    assert address in (ANSWERS, SLOW)
    assert brokers.cancelled == [broker for broker in brokers.tried if broker == SILENT]


@pytest.mark.usefixtures("soon")
def test_each_broker_has_the_whole_timeout() -> None:
    assert asyncio.run(first_to_answer([SLOW, *[REFUSES] * 40], Brokers().connect))[0] == SLOW


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(
    ("count", "message"), [(1, "^cannot reach"), (2, "^no broker answers: cannot reach .*; cannot")]
)
def test_no_answering_broker_raises(count: int, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        asyncio.run(first_to_answer([REFUSES] * count, Brokers().connect))


LIST, DESCRIBE_CONFIGS = 74, 32
SET, DEFAULT = 7, 5  # ConfigSource of CLIENT_METRICS_CONFIG, DEFAULT_CONFIG
REFUSED = {"error_code": 31}


def read(
    resources: dict[str, dict[str, tuple[str, int]]], *, listed: Any = None, described: Any = None, newest: int = 4
) -> tuple[dict[str, dict[str, str]], list[int]]:
    """What is read of resources, name -> key -> (value, source), and which APIs were asked."""
    results = [
        {
            "resource_name": name,
            "configs": [
                {"name": key, "value": value, "config_source": source} for key, (value, source) in keys.items()
            ],
            **(described or {}),
        }
        for name, keys in resources.items()
    ]
    names = [{"resource_name": name} for name in resources]
    answers = {
        API_VERSIONS: spans({3: (0, 13), LIST: (0, 1), DESCRIBE_CONFIGS: (1, newest)}),
        LIST: in_any_version({"config_resources": names, **(listed or {})}),
        DESCRIBE_CONFIGS: in_any_version({"results": results}),
    }

    async def ask(admin: KafkaAdmin, fake: FakeBroker) -> Any:
        return await read_subscriptions(admin), fake.asked

    subscriptions, asked = asking(answers, ask)
    return subscriptions, asked


@pytest.mark.parametrize("newest", [1, 2, 3, 4])
def test_only_explicitly_set_keys_are_read(newest: int) -> None:
    resources = {
        "one": {"metrics": ("a,b", SET), "interval.ms": ("300000", DEFAULT), "match": ("", DEFAULT)},
        "two": {"metrics": ("", SET), "interval.ms": ("100", SET)},
        "gone": {"metrics": ("", DEFAULT)},  # deleted after the listing
    }
    expected = {"one": {"metrics": "a,b"}, "two": {"metrics": "", "interval.ms": "100"}}
    assert read(resources, newest=newest)[0] == expected


def test_empty_listing_sends_no_describe() -> None:
    assert read({}) == ({}, [API_VERSIONS, LIST])


@pytest.mark.parametrize("refused", [{"listed": REFUSED}, {"described": REFUSED}])
def test_error_code_raises_refused_error(refused: dict[str, Any]) -> None:
    with pytest.raises(RefusedError, match="31"):
        read({"one": {"metrics": ("a", SET)}}, **refused)
