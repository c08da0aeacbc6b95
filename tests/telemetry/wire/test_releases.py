"""The table of APIs and the rewritten responses beside the classes of other releases of Kafka, which have versions that
the newest one removed."""

from collections.abc import Iterator
from typing import Any

import py4j.java_gateway
import pytest

from headroom.demo.jars import KAFKA_VERSION
from headroom.demo.jvm import Jvm
from telemetry.wire.address_rewrites import REWRITES
from telemetry.wire.apis import APIS, DESCRIBE_CLUSTER, FIND_COORDINATOR, METADATA, SHARE_FETCH
from tests.kit.kafka.client_jars import client_libs

pytestmark = [pytest.mark.java, pytest.mark.slow]

RELEASES = [*(pytest.param(old, marks=pytest.mark.release) for old in ("2.8.2", "3.9.1", "4.0.0")), KAFKA_VERSION]
_CORRELATION_ID_BYTES = 4


@pytest.fixture(scope="module", params=RELEASES)
def release(request: pytest.FixtureRequest, java: str, jvm: Jvm) -> Iterator[Any]:
    """The JVM of a release, as py4j sees it."""
    if request.param == KAFKA_VERSION:
        yield jvm.classes
        return
    libs = client_libs(java, request.param, request.config.rootpath / ".cache" / f"kafka-clients-{request.param}")
    with Jvm(java, libs) as running:
        yield running.classes


def test_table_matches_each_version_of_the_release(release: Any) -> None:
    differences, compared = [], 0
    for of_kafka in release.org.apache.kafka.common.message.ApiMessageType.values():
        key, schemas = of_kafka.apiKey(), of_kafka.responseSchemas()
        if key not in APIS:
            assert "BROKER" not in [listener.name() for listener in of_kafka.listeners()], key
            continue
        api = APIS[key]
        for version in range(of_kafka.lowestSupportedVersion(), len(schemas)):
            definitions = [py4j.java_gateway.get_field(field, "def") for field in schemas[version].fields()]
            names = [str(py4j.java_gateway.get_field(definition, "name")) for definition in definitions]
            theirs = (
                version <= api.max_version,
                of_kafka.requestHeaderVersion(version) == 2,
                of_kafka.responseHeaderVersion(version) == 1,
                names[:1] == ["throttle_time_ms"],
            )
            ours = (
                True,
                api.flexible(version),
                version >= api.response_tags_from,
                api.throttle_first(version),
            )
            compared += 1
            if theirs != ours:
                differences.append((api.name, version, theirs, ours))
    assert differences == []
    assert compared > 150


def moved(node_id: int, host: str, port: int) -> tuple[str, int]:
    return f"gateway-{host}", port + 1


def a_response(release: Any, key: int, version: int) -> Any:
    """A response that names broker 7 at host:9092."""
    data = release.org.apache.kafka.common.message
    if key == METADATA:
        made = data.MetadataResponseData()
        broker = data.MetadataResponseData.MetadataResponseBroker().setNodeId(7).setHost("host").setPort(9092)
        made.brokers().add(broker)
    elif key == DESCRIBE_CLUSTER:
        made = data.DescribeClusterResponseData()
        made.brokers().add(
            data.DescribeClusterResponseData.DescribeClusterBroker().setBrokerId(7).setHost("host").setPort(9092)
        )
    elif key == FIND_COORDINATOR and version >= 4:
        made = data.FindCoordinatorResponseData()
        coordinator = data.FindCoordinatorResponseData.Coordinator().setKey("group")
        made.coordinators().add(coordinator.setNodeId(7).setHost("host").setPort(9092))
    elif key == FIND_COORDINATOR:
        made = data.FindCoordinatorResponseData().setNodeId(7).setHost("host").setPort(9092)
    else:
        is_fetch = key == SHARE_FETCH
        of_api = data.ShareFetchResponseData if is_fetch else data.ShareAcknowledgeResponseData
        made = of_api()
        made.nodeEndpoints().add(of_api.NodeEndpoint().setNodeId(7).setHost("host").setPort(9092))
        if version == 0 or not is_fetch:  # the topic's records are null, which only version 0 may have
            topic = of_api.ShareFetchableTopicResponse() if is_fetch else of_api.ShareAcknowledgeTopicResponse()
            topic.partitions().add(of_api.PartitionData().setPartitionIndex(3).setErrorMessage("moved"))
            made.responses().add(topic)
    return made


def written(release: Any, made: Any, version: int) -> bytes:
    """The body as the release's own class writes it."""
    kafka = release.org.apache.kafka.common
    header = kafka.message.ResponseHeaderData()
    return bytes(kafka.requests.RequestUtils.serialize(header, 0, made, version).array())[_CORRELATION_ID_BYTES:]


@pytest.mark.parametrize("key", sorted(REWRITES))
def test_addresses_of_each_version_are_rewritten(release: Any, key: int) -> None:
    of_kafka = next(
        (api for api in release.org.apache.kafka.common.message.ApiMessageType.values() if api.apiKey() == key), None
    )
    if of_kafka is None:
        return  # a release before the API
    for version in range(of_kafka.lowestSupportedVersion(), len(of_kafka.responseSchemas())):
        body = written(release, a_response(release, key, version), version)
        expected = body.replace(b"\x05host", b"\x0dgateway-host").replace(b"\x04host", b"\x0cgateway-host")
        expected = expected.replace((9092).to_bytes(4, "big"), (9093).to_bytes(4, "big"))
        assert REWRITES[key](body, version, moved) == expected, version
        assert expected != body
