"""Entities, and the eight levels. Limits and tags of odd names are compared with Kafka's classes (test_oracle.py)."""

import math
import shlex
from collections.abc import Mapping

import pytest

from quota_metrics.config.entities import Entity, Rules, entity_of, kafka_configs_line, stored_rules
from quota_metrics.config.resolution import Resolver, Rule

ALICE = entity_of({"user": "alice"})


def test_limit_below_zero_allows_nothing() -> None:
    rules = stored_rules(
        {ALICE: {"producer_byte_rate": -1.0, "request_percentage": 0.0, "consumer_byte_rate": math.inf}}
    )
    assert rules == {ALICE: {"producer_byte_rate": 0.0, "request_percentage": 0.0, "consumer_byte_rate": math.inf}}


@pytest.mark.parametrize(
    ("entity", "value", "words"),
    [
        ((("user", "alice"),), 5000.0, ["--entity-type", "users", "--entity-name", "alice", "--add-config", "k=5000"]),
        ((("user", None),), 12.5, ["--entity-type", "users", "--entity-default", "--add-config", "k=12.5"]),
        ((("client-id", None),), None, ["--entity-type", "clients", "--entity-default", "--delete-config", "k"]),
        (
            (("user", "a'; rm -rf / #"), ("client-id", "$(id) `id`")),
            1e15,
            ["--entity-type", "users", "--entity-name", "a'; rm -rf / #", "--entity-type", "clients", "--entity-name",
             "$(id) `id`", "--add-config", "k=1000000000000000"],
        ),
    ],
)  # fmt: skip
def test_kafka_configs_line_is_quoted_for_the_shell(entity: Entity, value: float | None, words: list[str]) -> None:
    line = kafka_configs_line(entity, "k", value)
    assert shlex.split(line) == ["kafka-configs.sh", "--bootstrap-server", "HOST:PORT", "--alter", *words]


PRODUCER, CONSUMER, IP_RATE = "producer_byte_rate", "consumer_byte_rate", "connection_creation_rate"


def rules(*rows: tuple[Mapping[str, str | None], float], key: str = PRODUCER) -> Rules:
    return {entity_of(entity): {key: value} for entity, value in rows}


def test_each_level_overrides_and_lists_lower_levels() -> None:
    levels: list[dict[str, str | None]] = [
        {"user": "u", "client-id": "c"},
        {"user": "u", "client-id": None},
        {"user": "u"},
        {"user": None, "client-id": "c"},
        {"user": None, "client-id": None},
        {"user": None},
        {"client-id": "c"},
        {"client-id": None},
    ]
    for first in range(8):
        rows = [(level, float(number)) for number, level in enumerate(levels)][first:]
        resolution = Resolver(rules(*rows)).resolve("u", "c")[PRODUCER]
        assert (resolution.value, resolution.entity) == (first, entity_of(levels[first]))
        assert resolution.overridden == [Rule(entity_of(level), value) for level, value in rows[1:]]


def test_keys_are_resolved_separately_and_omitted_without_a_rule() -> None:
    resolver = Resolver(
        {
            entity_of({"user": "u"}): {PRODUCER: 1.0},
            entity_of({"client-id": "c"}): {PRODUCER: 2.0, CONSUMER: 3.0},
        }
    )
    resolved = resolver.resolve("u", "c")
    assert {key: resolution.value for key, resolution in resolved.items()} == {PRODUCER: 1.0, CONSUMER: 3.0}
    assert resolved[CONSUMER].metric_tags == {"user": "", "client-id": "c"}
    assert resolver.resolve("x", "y") == {}


def test_unknown_name_matches_no_rule_of_its_dimension() -> None:
    resolver = Resolver(
        rules(({"user": None, "client-id": None}, 1.0), ({"user": None}, 2.0), ({"client-id": None}, 3.0))
    )
    assert resolver.resolve("u", "c")[PRODUCER].value == 1.0
    assert resolver.resolve("u", None)[PRODUCER].value == 2.0
    assert resolver.resolve(None, "c")[PRODUCER].value == 3.0
    assert resolver.resolve(None, None) == {}


def test_ip_limit_falls_back_to_the_default() -> None:
    resolver = Resolver(rules(({"ip": "10.1"}, 1.0), ({"ip": None}, 2.0), ({"ip": "::1"}, 3.0), key=IP_RATE))
    own = resolver.resolve(None, None, "10.0.0.1")[IP_RATE]
    assert (own.value, own.metric_tags) == (1.0, {"ip": "10.0.0.1"})
    assert own.overridden == [Rule(entity_of({"ip": None}), 2.0)]
    assert resolver.resolve(None, None, "10.0.0.2")[IP_RATE].entity == entity_of({"ip": None})
    assert resolver.resolve(None, None, "0:0:0:0:0:0:0:1")[IP_RATE].value == 3.0
    assert resolver.resolve(None, None, "::ffff:10.0.0.1")[IP_RATE].value == 1.0
    assert IP_RATE not in resolver.resolve("u", "c")
    assert Resolver({}).resolve("u", "c", "10.0.0.1") == {}
