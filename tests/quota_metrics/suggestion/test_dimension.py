"""Whom quotas are for, and which clients keep the rule that they have."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quota_metrics.config.broker_refusals import altered
from quota_metrics.config.entities import Entity, QuotaAlteration, entity_of
from quota_metrics.config.resolution import Resolver, bucket_names
from quota_metrics.suggestion.dimension import Dimension, Fleet, dimension_of, is_nameable, placed

KEY = "producer_byte_rate"
USERS = Fleet(users=20, clients=60, most_of_user=5)


def entity(user: str | None = "", client_id: str | None = "") -> Entity:
    """ "" is no part, None the default."""
    return entity_of({kind: name for kind, name in (("user", user), ("client-id", client_id)) if name != ""})


@pytest.mark.parametrize(
    ("rules", "fleet", "expected"),
    [
        ([], Fleet(0, 200, 0), Dimension.CLIENT_ID),
        ([], Fleet(1, 200, 200), Dimension.CLIENT_ID),
        ([], USERS, Dimension.USER),
        ([], Fleet(3, 60, 30), Dimension.USER),  # half is not more than half
        ([], Fleet(3, 60, 31), Dimension.BOTH),  # one account for many applications
        ([entity(client_id=None)], USERS, Dimension.CLIENT_ID),  # the default in force decides
        ([entity(client_id=None), entity(user=None)], USERS, Dimension.USER),  # the most specific one
        ([entity(user=None), entity(user=None, client_id=None)], USERS, Dimension.BOTH),
        ([entity(client_id="a"), entity(client_id="b"), entity(user="u")], USERS, Dimension.CLIENT_ID),
        ([entity(user="u", client_id=None)], USERS, Dimension.BOTH),
        ([entity_of({"ip": None}), entity_of({"vendor": "x"})], USERS, Dimension.USER),  # no rules of clients
    ],
)
def test_dimension_by_rules_then_by_names(rules: list[Entity], fleet: Fleet, expected: Dimension) -> None:
    dimension, why = dimension_of({rule: {KEY: 1.0} for rule in rules}, [KEY], fleet)
    assert dimension is expected
    assert why


def test_rules_of_other_keys_do_not_decide() -> None:
    assert dimension_of({entity(client_id=None): {"request_percentage": 5.0}}, [KEY], USERS)[0] is Dimension.USER


NAMES = ("a", "b", None, "")
ENTITIES = [
    entity(user, client_id) for user, client_id in itertools.product(NAMES, NAMES) if (user, client_id) != ("", "")
]


@given(st.sets(st.sampled_from(ENTITIES)), st.sampled_from(Dimension), st.sampled_from("ab"), st.sampled_from("ab"))
def test_who_is_placed_gets_the_new_default(
    rules: set[Entity], dimension: Dimension, user: str, client_id: str
) -> None:
    """By the resolution of quotas itself: with the default added, exactly those who are placed have it, in the bucket
    in which they are placed, or had it already."""
    before = {rule: {KEY: 1.0} for rule in rules if rule != dimension.default}
    after = Resolver(altered(before, QuotaAlteration(dimension.default, {KEY: 2.0})))
    place = placed(Resolver(before), dimension, KEY, user, client_id)
    now = after.quota(KEY, user, client_id)
    assert now is not None
    assert (place.bucket is not None) == (now.entity == dimension.default)
    assert place.bucket is None or place.bucket == bucket_names(now)


@pytest.mark.parametrize(("user", "client_id"), [("", "a"), ("a", ""), ("", "")])
def test_empty_names_are_not_placed_where_the_default_needs_them(user: str, client_id: str) -> None:
    assert placed(Resolver({}), Dimension.BOTH, KEY, user, client_id).bucket is None


def test_names_that_stand_for_others_cannot_be_named() -> None:
    assert [
        name
        for name in ("", "<default>", "a\N{REPLACEMENT CHARACTER}", "x" * 238 + "~" + "0" * 16)
        if is_nameable(name)
    ] == []
    assert is_nameable("a~b")
