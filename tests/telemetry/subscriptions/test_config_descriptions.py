"""telemetry/subscriptions/config_admin.py: DescribeConfigs, ListConfigResources, invalid bytes."""

from __future__ import annotations

import pytest

from quota_metrics.kafka.primitives import ProtocolError
from telemetry.subscriptions.config_admin import describe, list_resources
from telemetry.wire.apis import DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS, LIST_CONFIG_RESOURCES
from telemetry.wire.config_messages import MAX_RESOURCES
from tests.oracle import administration_oracle as requests
from tests.oracle.administration_oracle import CLIENT_METRICS, decoded
from tests.telemetry.subscriptions.config_requests import (
    BROKER,
    BROKER_LOGGER,
    GROUP,
    HERE,
    NO_TYPE,
    RESOURCES,
    TOPIC,
    answered,
)


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_describe_returns_values_sources_and_synonyms(version: int) -> None:
    body = requests.describe(version, [(CLIENT_METRICS, HERE, None)], synonyms=True, documentation=version >= 3)
    (result,) = decoded(32, version, describe(version, body, RESOURCES)).results
    assert (int(result.error_code), result.error_message, result.resource_name) == (0, "", HERE)
    assert [(entry.name, entry.value, entry.config_source) for entry in result.configs] == [
        ("interval.ms", "5000", 7),
        ("match", "", 5),
        ("metrics", "x,y", 7),
    ]
    assert [[(s.name, s.value, s.source) for s in entry.synonyms] for entry in result.configs] == [
        [("interval.ms", "5000", 7)],
        [],
        [("metrics", "x,y", 7)],
    ]
    assert not any(entry.read_only or entry.is_sensitive for entry in result.configs)
    if version >= 3:
        assert [entry.config_type for entry in result.configs] == [3, 7, 7]
        assert [entry.documentation for entry in result.configs] == [
            "Metrics push interval in milliseconds",
            "Client match criteria",
            "Telemetry metric name prefix list",
        ]


@pytest.mark.parametrize(
    ("kind", "name", "code", "message"),
    [
        (CLIENT_METRICS, "", 42, "Client metrics subscription name must not be empty"),
        (TOPIC, "nope", 3, ""),
        (BROKER, "0", 42, "Unsupported resource type: BROKER"),
        (BROKER_LOGGER, "0", 42, "Unsupported resource type: BROKER_LOGGER"),
        (GROUP, "g", 42, "Unsupported resource type: GROUP"),
    ],
)
def test_describe_refuses_unsupported_resources(kind: int, name: str, code: int, message: str) -> None:
    body = requests.describe(4, [(kind, name, None), (CLIENT_METRICS, HERE, None)])
    refused, other = decoded(32, 4, describe(4, body, RESOURCES)).results
    assert (int(refused.error_code), refused.error_message, refused.configs) == (code, message, ())
    assert int(other.error_code) == 0


def test_describe_of_unknown_type_fails_the_whole_request() -> None:
    body = requests.describe(4, [(NO_TYPE, "x", None), (CLIENT_METRICS, HERE, None)])
    described = decoded(32, 4, describe(4, body, RESOURCES)).results
    assert [int(result.error_code) for result in described] == [42, 42]


@pytest.mark.parametrize(
    ("kinds", "code", "names"),
    [
        ([], 0, ["b", "a"]),
        ([16], 0, ["b", "a"]),
        ([TOPIC], 0, []),
        ([GROUP, 16], 0, ["b", "a"]),
        ([0], 35, []),
        ([16, NO_TYPE], 35, []),
    ],
)
def test_list_filters_by_resource_type(kinds: list[int], code: int, names: list[str]) -> None:
    reported = decoded(74, 1, list_resources(1, requests.listing(1, kinds), ["b", "a"]))
    assert int(reported.error_code) == code
    assert [(resource.resource_name, resource.resource_type) for resource in reported.config_resources] == [
        (n, 16) for n in names
    ]


def test_list_version_0_returns_client_metrics_resources() -> None:
    reported = decoded(74, 0, list_resources(0, requests.listing(0), ["b", "a"]))
    assert [resource.resource_name for resource in reported.config_resources] == ["b", "a"]


def test_describe_version_0_raises_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="version 0"):
        describe(0, b"\x00\x00\x00\x00", RESOURCES)


@pytest.mark.parametrize(
    ("api_key", "body"),
    [
        (INCREMENTAL_ALTER_CONFIGS, b"\x00\x00\x00"),  # null instead of resources
        (INCREMENTAL_ALTER_CONFIGS, b"\x02\x10\x02q\x00\x00\x01\x00"),  # null instead of keys
        (INCREMENTAL_ALTER_CONFIGS, b"\x02\x10\x00\x01\x00\x01\x00"),  # null instead of a name
        (INCREMENTAL_ALTER_CONFIGS, b"\x02\x10\x02q\x02\x02k\x00\x81\x80\x02" + bytes(40_000)),  # 32,768 bytes of value
        (INCREMENTAL_ALTER_CONFIGS, b"\xff\xff\xff\xff\x0f" + bytes(100)),  # four billion resources
        (DESCRIBE_CONFIGS, b"\x00\x00\x00\x00"),
        (LIST_CONFIG_RESOURCES, b"\x00\x00"),
        (LIST_CONFIG_RESOURCES, b""),
    ],
)
def test_malformed_bodies_raise_protocol_error(api_key: int, body: bytes) -> None:
    with pytest.raises(ProtocolError):
        answered(api_key, body)


def test_oversized_describe_raises_protocol_error() -> None:
    many = requests.describe(4, [(CLIENT_METRICS, "x", None)] * (MAX_RESOURCES + 1))
    with pytest.raises(ProtocolError, match="at most 10000"):
        describe(4, many, RESOURCES)
    heavy = {"heavy": {"metrics": "m" * 30_000}}
    with pytest.raises(ProtocolError, match="cannot describe"):
        describe(4, requests.describe(4, [(CLIENT_METRICS, "heavy", None)] * 1_000, synonyms=True), heavy)
