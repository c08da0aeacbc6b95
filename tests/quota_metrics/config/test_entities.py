"""KIP-546's entities, filters and spellings."""

from __future__ import annotations

import pytest

from quota_metrics.config.entities import FilterComponent, MatchType, desanitize, entity_of, matches, sanitize, text

ALICE = entity_of({"user": "alice"})
ALICE_APP = entity_of({"client-id": "app", "user": "alice"})
ANY_APP = entity_of({"user": None, "client-id": "app"})
IP = entity_of({"ip": "10.0.0.1"})
EVERYBODY = [ALICE, ALICE_APP, ANY_APP, IP]

EXACT_ALICE = FilterComponent("user", MatchType.EXACT, "alice")
DEFAULT_USER = FilterComponent("user", MatchType.DEFAULT)
ANY_USER = FilterComponent("user", MatchType.ANY)
EXACT_APP = FilterComponent("client-id", MatchType.EXACT, "app")


def test_entity_equality_ignores_order() -> None:
    assert ALICE_APP == entity_of({"user": "alice", "client-id": "app"}) == (("user", "alice"), ("client-id", "app"))


@pytest.mark.parametrize(
    ("components", "strict", "expected"),
    [
        ([], False, EVERYBODY),
        ([], True, []),
        ([EXACT_ALICE], False, [ALICE, ALICE_APP]),
        ([EXACT_ALICE], True, [ALICE]),
        ([DEFAULT_USER], False, [ANY_APP]),
        ([DEFAULT_USER], True, []),
        ([ANY_USER], False, [ALICE, ALICE_APP, ANY_APP]),
        ([ANY_USER], True, [ALICE]),
        ([ANY_USER, EXACT_APP], True, [ALICE_APP, ANY_APP]),
        ([EXACT_ALICE, EXACT_APP], False, [ALICE_APP]),
        ([FilterComponent("ip", MatchType.ANY)], False, [IP]),
    ],
)
def test_filter_components_select_entities(
    components: list[FilterComponent], strict: bool, expected: list[object]
) -> None:
    assert [entity for entity in EVERYBODY if matches(entity, components, strict=strict)] == expected


@pytest.mark.parametrize(
    ("name", "sanitized"),
    [
        ("user with spaces", "user%20with%20spaces"),
        ("CN=app,OU=x,O=y", "CN%3Dapp%2COU%3Dx%2CO%3Dy"),
        ("a+b", "a%2Bb"),
        ("user@REALM", "user%40REALM"),
        ("x.y-z_~", "x.y-z_%7E"),
        ("%41", "%2541"),
        ("a*", "a%2A"),
        ("ü", "%C3%BC"),
    ],
)
def test_names_are_sanitized_as_in_kafka(name: str, sanitized: str) -> None:
    assert sanitize(name) == sanitized
    assert desanitize(sanitized) == name


def test_text_uses_the_notation_of_kip_546() -> None:
    assert text(entity_of({"user": "a b", "client-id": None})) == "{user=a%20b, client-id=<default>}"
