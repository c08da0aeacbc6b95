"""The eight levels, named after ClientQuotaManagerTest where that has the case."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from quota_metrics.config.entities import Rules, entity_of
from quota_metrics.config.resolution import Resolver, Rule

PRODUCER, CONSUMER, IP_RATE = "producer_byte_rate", "consumer_byte_rate", "connection_creation_rate"


def rules(*rows: tuple[Mapping[str, str | None], float], key: str = PRODUCER) -> Rules:
    return {entity_of(entity): {key: value} for entity, value in rows}


# ClientQuotaManagerTest.testQuotaConfigPrecedence
PRECEDENCE_RULES = rules(
    ({"user": None}, 1000),
    ({"client-id": None}, 2000),
    ({"user": None, "client-id": None}, 3000),
    ({"user": "userA"}, 4000),
    ({"user": "userA", "client-id": "client1"}, 5000),
    ({"user": "userB"}, 6000),
    ({"user": "userB", "client-id": "client1"}, 7000),
    ({"user": "userB", "client-id": None}, 8000),
    ({"user": "userC"}, 10000),
    ({"client-id": "client1"}, 9000),
)


@pytest.mark.parametrize(
    ("user", "client_id", "value", "tags"),
    [
        ("userA", "client1", 5000, ("userA", "client1")),
        ("userA", "client2", 4000, ("userA", "")),
        ("userB", "client1", 7000, ("userB", "client1")),
        ("userB", "client2", 8000, ("userB", "client2")),
        ("userC", "client1", 10000, ("userC", "")),
        ("userD", "client1", 3000, ("userD", "client1")),
    ],
)
def test_quota_config_precedence(user: str, client_id: str, value: float, tags: tuple[str, str]) -> None:
    resolution = Resolver(PRECEDENCE_RULES).resolve(user, client_id)[PRODUCER]
    assert resolution.value == value
    assert resolution.metric_tags == {"user": tags[0], "client-id": tags[1]}


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


@pytest.mark.parametrize(
    ("configured", "tags"),
    [
        ([], ("", "c")),
        ([{"client-id": "other"}], ("", "c")),
        ([{"user": "other"}], ("u", "")),
        ([{"user": "other", "client-id": "c"}], ("u", "c")),
        ([{"user": "other"}, {"client-id": "other"}], ("", "c")),
        ([{"user": "other", "client-id": "c"}, {"user": None}], ("u", "")),
    ],
)
def test_tags_of_unlimited_client_follow_the_configured_levels(
    configured: list[dict[str, str | None]], tags: tuple[str, str]
) -> None:
    resolver = Resolver(rules(*((entity, 1.0) for entity in configured)))
    assert resolver.metric_tags(PRODUCER, "u", "c") == {"user": tags[0], "client-id": tags[1]}


def test_user_tag_is_sanitized_and_maps_back_to_the_rule() -> None:
    resolver = Resolver(rules(({"user": "CN=a, O=b"}, 5.0), ({"client-id": "a:b"}, 7.0)))
    tags = resolver.metric_tags(PRODUCER, "CN=a, O=b", "x")
    assert tags == {"user": "CN%3Da%2C%20O%3Db", "client-id": ""}
    assert resolver.limit_of_tags(PRODUCER, tags) == Rule(entity_of({"user": "CN=a, O=b"}), 5.0)
    assert resolver.limit_of_tags(PRODUCER, {"user": "", "client-id": "a:b"}) == Rule(
        entity_of({"client-id": "a:b"}), 7.0
    )
    assert resolver.limit_of_tags(PRODUCER, {"user": "x", "client-id": "a:b"}) is None
    assert resolver.limit_of_tags(PRODUCER, {"ip": "::1"}) is None


def test_unknown_name_matches_no_rule_of_its_dimension() -> None:
    resolver = Resolver(
        rules(({"user": None, "client-id": None}, 1.0), ({"user": None}, 2.0), ({"client-id": None}, 3.0))
    )
    assert resolver.resolve("u", "c")[PRODUCER].value == 1.0
    assert resolver.resolve("u", None)[PRODUCER].value == 2.0
    assert resolver.resolve(None, "c")[PRODUCER].value == 3.0
    assert resolver.resolve(None, None) == {}


def test_empty_client_id_is_limited_by_user_rules_only() -> None:
    resolver = Resolver(
        rules(({"user": "u", "client-id": None}, 1.0), ({"user": None}, 2.0), ({"client-id": None}, 3.0))
    )
    resolution = resolver.resolve("u", "")[PRODUCER]
    assert (resolution.value, resolution.metric_tags) == (2.0, {"user": "u", "client-id": ""})
    assert Resolver(rules(({"client-id": None}, 3.0))).resolve("u", "") == {}


def test_empty_name_in_a_rule_is_neither_default_nor_absent() -> None:
    resolver = Resolver(rules(({"user": "u", "client-id": ""}, 1.0), ({"user": ""}, 2.0)))
    assert resolver.resolve("u", "c") == {}


def test_user_named_default_is_an_ordinary_name() -> None:
    resolver = Resolver(rules(({"user": "<default>"}, 1.0), ({"user": "absent"}, 2.0)))
    assert resolver.resolve("u", "c") == {}
    assert resolver.resolve("<default>", "c")[PRODUCER].value == 1.0


def test_ip_limit_falls_back_to_the_default() -> None:
    resolver = Resolver(rules(({"ip": "10.0.0.1"}, 1.0), ({"ip": None}, 2.0), ({"ip": "::1"}, 3.0), key=IP_RATE))
    own = resolver.resolve(None, None, "10.0.0.1")[IP_RATE]
    assert (own.value, own.metric_tags) == (1.0, {"ip": "10.0.0.1"})
    assert own.overridden == [Rule(entity_of({"ip": None}), 2.0)]
    assert resolver.resolve(None, None, "10.0.0.2")[IP_RATE].entity == entity_of({"ip": None})
    assert resolver.resolve(None, None, "0:0:0:0:0:0:0:1")[IP_RATE].value == 3.0
    assert resolver.resolve(None, None, "::ffff:10.0.0.1")[IP_RATE].value == 1.0
    assert IP_RATE not in resolver.resolve("u", "c")
    assert Resolver({}).resolve("u", "c", "10.0.0.1") == {}
