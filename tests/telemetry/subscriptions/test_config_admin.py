"""telemetry/subscriptions/config_admin.py and config_messages.py: each rule alone, and compared with a real broker."""

from collections.abc import Iterator
from typing import Any

import pytest

from headroom.demo.broker import LocalCluster
from quota_metrics.kafka.primitives import ProtocolError
from telemetry.subscriptions.config_admin import MAX_CHARS, Alteration, alter, describe, list_resources
from telemetry.subscriptions.subscription import EXTRA_MATCH_KEYS, MATCH_KEYS
from telemetry.wire.apis import ALTER_CONFIGS, DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS, LIST_CONFIG_RESOURCES
from telemetry.wire.config_messages import MAX_RESOURCES
from tests.kit.raw_connection import RawConnection
from tests.oracle import administration_oracle as requests
from tests.oracle.administration_oracle import APPEND, CLIENT_METRICS, DELETE, SET, SUBTRACT, decoded

TOPIC, BROKER, BROKER_LOGGER, GROUP, NO_TYPE = 2, 4, 8, 32, 3
HERE = "administration-here"  # an existing resource
RESOURCES = {HERE: {"metrics": " x , y,x", "interval.ms": "+5000"}}

Keys = list[tuple[str, int, str | None]]
Answered = list[tuple[int, str | None]]


def here(*keys: tuple[str, int, str | None], name: str = HERE) -> list[tuple[int, str, Keys]]:
    return [(CLIENT_METRICS, name, list(keys))]


def results(api_key: int, version: int, body: bytes) -> Answered:
    return [(int(result.error_code), result.error_message) for result in decoded(api_key, version, body).responses]


def altered(body: bytes, version: int = 1, resources: Any = RESOURCES) -> Alteration:
    return alter(INCREMENTAL_ALTER_CONFIGS, version, body, resources, MATCH_KEYS)


def answered(api_key: int, body: bytes) -> bytes:
    """In the newest version of each API."""
    match api_key:
        case 32:
            return describe(4, body, RESOURCES)
        case 74:
            return list_resources(1, body, RESOURCES)
        case _:
            return alter(api_key, 1 if api_key == 44 else 2, body, RESOURCES, MATCH_KEYS).answer()


TWICE = "Each resource must appear at most once."
INTERVAL = "interval must be between 100 and 3600000 (1 hour)"

# section 2.3 of the specification, rule by rule: resources -> (code, message) of each
RULES: dict[str, tuple[list[tuple[int, str, Keys]], Answered]] = {
    "a resource twice": (
        [*here(("metrics", SET, "a")), *here(), *here(("metrics", SET, "a"), name="other")],
        [(42, TWICE), (42, TWICE), (0, None)],
    ),
    "a key twice": (
        here(("metrics", SET, "a"), ("metrics", DELETE, None)),
        [(42, "Error due to duplicate config keys")],
    ),
    "null": (
        here(("foo", SUBTRACT, None), ("match", DELETE, None), ("metrics", SET, None)),
        [(42, "Null value not supported for : foo, metrics")],
    ),
    "a type that is none": ([(NO_TYPE, "x", [])], [(42, "Unknown resource type 3")]),
    "a topic that is not there": ([(TOPIC, "nope", [])], [(3, "The topic 'nope' does not exist.")]),
    "append": (
        here(("metrics", APPEND, "z")),
        [(40, "Can't APPEND to key metrics because its type is not LIST.")],
    ),
    "subtract, and which key is reported of": (
        here(("metrics", SUBTRACT, "z"), ("match", SUBTRACT, "z"), ("interval.ms", SUBTRACT, "1")),
        [(40, "Can't SUBTRACT to key interval.ms because its type is not LIST.")],
    ),
    "delete what is not set": (here(("match", DELETE, "v"), ("nokey", DELETE, None)), [(0, None)]),
    "delete of what does not exist": (here(("metrics", DELETE, None), name="missing"), [(0, None)]),
    "nothing to do": (here(name="missing"), [(0, None)]),
    "empty name": (here(("metrics", SET, "a"), name=""), [(42, "Subscription name can't be empty")]),
    "empty name and nothing to do": (here(name=""), [(42, "Subscription name can't be empty")]),
    "unknown keys, and which is reported of": (
        here(*((key, SET, "x") for key in ("foo", "bar", "qux", "zip"))),
        [(42, "Unknown client metrics configuration: zip")],
    ),
    "not a number": (
        here(("interval.ms", SET, "bbb")),
        [(40, "Invalid value bbb for configuration interval.ms: Not a number of type INT")],
    ),
    "no number": (
        here(("interval.ms", SET, "")),
        [(40, "Invalid value  for configuration interval.ms: Not a number of type INT")],
    ),
    "blank element": (
        here(("metrics", SET, "a,,b")),
        [(40, "Configuration 'metrics' values must not be empty.")],
    ),
    "interval too short": (
        here(("interval.ms", SET, " 99 ")),
        [(42, f"Invalid value 99 for interval.ms, {INTERVAL}")],
    ),
    "interval too long": (
        here(("interval.ms", SET, "3600001")),
        [(42, f"Invalid value 3600001 for interval.ms, {INTERVAL}")],
    ),
    "no criterion": (here(("match", SET, "client_id")), [(40, "Illegal client matching pattern: client_id")]),
    "no pattern": (here(("match", SET, "client_id=[")), [(40, "Illegal client matching pattern: client_id=[")]),
    "a selector that no broker has": (
        here(("match", SET, "principal=alice")),
        [(40, "Illegal client matching pattern: principal=alice")],
    ),
    "one fails, the others do not": (
        [
            *here(("metrics", SET, "a")),
            *here(("interval.ms", SET, "1"), name="bad"),
            *here(("metrics", SET, ""), name="b"),
        ],
        [(0, None), (42, f"Invalid value 1 for interval.ms, {INTERVAL}"), (0, None)],
    ),
}


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("rule", RULES)
def test_alteration_follows_the_specification(rule: str, version: int) -> None:
    asked, expected = RULES[rule]
    body = requests.incremental(version, asked, validate_only=True)
    assert results(44, version, altered(body, version).answer()) == expected


@pytest.fixture(scope="module")
def broker(kafka: LocalCluster) -> Iterator[RawConnection]:
    """The shared broker with RESOURCES in it."""
    with RawConnection(kafka.bootstrap) as connection:
        keys = [(key, SET, value) for key, value in RESOURCES[HERE].items()]
        connection.ask(44, 1, requests.incremental(1, here(*keys)))
        yield connection
        connection.ask(44, 1, requests.incremental(1, here(*((key, DELETE, None) for key, _, _ in keys))))


@pytest.mark.kafka
@pytest.mark.java
@pytest.mark.parametrize("rule", RULES)
def test_broker_answers_the_same(broker: RawConnection, rule: str) -> None:
    body = requests.incremental(1, RULES[rule][0], validate_only=True)
    assert altered(body).answer() == broker.ask(44, 1, body)


@pytest.mark.kafka
@pytest.mark.java
def test_random_requests_are_answered_as_by_a_broker(kafka: LocalCluster) -> None:
    assert requests.run(kafka.bootstrap, seed=1, cases=300) == []


def test_alteration_returns_changed_resources() -> None:
    body = requests.incremental(
        1,
        [
            *here(("metrics", SET, "z"), ("interval.ms", DELETE, None)),
            *here(("metrics", SET, ""), name="new"),
            *here(("interval.ms", SET, "1"), name="refused"),
        ],
    )
    assert altered(body).changes == {HERE: {"metrics": "z"}, "new": {"metrics": ""}}
    gone = requests.incremental(1, here(("metrics", DELETE, None), ("interval.ms", DELETE, "")))
    assert altered(gone).changes == {HERE: {}}


def test_unchanged_and_only_validated_values_are_not_reported_as_changes() -> None:
    unchanged = requests.incremental(1, here(("interval.ms", SET, "+5000"), ("match", DELETE, None)))
    validated = requests.incremental(1, here(("metrics", SET, "z")), validate_only=True)
    assert [altered(body).changes for body in (unchanged, validated)] == [{}, {}]


def test_storage_failure_is_reported_for_changed_resources_only() -> None:
    body = requests.incremental(
        1, [*here(("metrics", SET, "z")), *here(name="same"), *here(("foo", SET, ""), name="no")]
    )
    assert results(44, 1, altered(body).not_kept("disk full")) == [
        (56, "disk full"),
        (0, None),
        (42, "Unknown client metrics configuration: foo"),
    ]


def test_unknown_operation_fails_all_controller_resources() -> None:
    body = requests.incremental(
        1, [*here(("metrics", 9, "z")), *here(("metrics", SET, "a"), name="other"), (NO_TYPE, "x", [])]
    )
    alteration = altered(body)
    assert results(44, 1, alteration.answer()) == [(-1, None), (-1, None), (42, "Unknown resource type 3")]
    assert alteration.changes == {}


@pytest.mark.parametrize("kind", [BROKER, BROKER_LOGGER, GROUP])
def test_cluster_only_resource_types_are_refused(kind: int) -> None:
    asked = altered(requests.incremental(1, [(kind, "0", [("a", SET, "b")])]))
    assert results(44, 1, asked.answer()) == [(42, f"Unknown resource type {kind}")]


def test_total_size_of_resources_is_bounded() -> None:
    full = {f"name-{n}": {"metrics": "m" * 30_000} for n in range(MAX_CHARS // 30_000)}
    asked = altered(requests.incremental(1, here(("metrics", SET, "m" * 30_000), name="new")), resources=full)
    ((code, message),) = results(44, 1, asked.answer())
    assert code == 44
    assert str(MAX_CHARS) in (message or "")
    assert asked.changes == {}


@pytest.mark.parametrize("version", [0, 1, 2])
def test_legacy_alter_configs_replaces_all_keys(version: int) -> None:
    body = requests.legacy(version, [(CLIENT_METRICS, HERE, [("match", "client_id=a")])])
    alteration = alter(ALTER_CONFIGS, version, body, RESOURCES, MATCH_KEYS)
    assert results(33, version, alteration.answer()) == [(0, None)]
    assert alteration.changes == {HERE: {"match": "client_id=a"}}


def test_legacy_alter_configs_refuses_duplicate_resources() -> None:
    body = requests.legacy(2, [(CLIENT_METRICS, HERE, []), (CLIENT_METRICS, HERE, [])])
    alteration = alter(ALTER_CONFIGS, 2, body, RESOURCES, MATCH_KEYS)
    assert results(33, 2, alteration.answer()) == [(42, TWICE), (42, TWICE)]
    assert alteration.changes == {}


def test_extra_selectors_are_accepted_when_enabled() -> None:
    body = requests.incremental(1, here(("match", SET, "principal=alice,listener=.*,cluster=c"), name="new"))
    alteration = alter(INCREMENTAL_ALTER_CONFIGS, 1, body, {}, EXTRA_MATCH_KEYS)
    assert alteration.changes == {"new": {"match": "principal=alice,listener=.*,cluster=c"}}


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
