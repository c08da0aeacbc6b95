"""Demands and rules in force -> suggestions: what changes, what is only found, and what the reasons say."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quota_metrics.config.entities import Entity
from quota_metrics.suggestion.dimension import Dimension
from quota_metrics.suggestion.suggested_quotas import Demand, KeyUsage, Kind, Replayed, Suggestion, suggestions

KEY = "producer_byte_rate"
DEFAULT: Entity = (("user", None),)


def demand(user: str, low: float, *, high: float | None = -1.0, peak: float = 0.0, **more: Any) -> Demand:
    """Of one who was not throttled, unless `high` or `throttled_share` say so."""
    wanted = low if high == -1.0 else high
    need = wanted or low
    stated = {"days": 7, "throttled_share": 0.0, **more}
    return Demand(user, "", 1, need, low, wanted, "usage", max(peak, need), **stated)


def fleet(*extra: Demand) -> list[Demand]:
    return [*(demand(f"u{number}", 100.0 + number) for number in range(20)), *extra]


def judged(
    free: list[Demand],
    rules: dict[Entity, float] | None = None,
    kept: list[Demand] | None = None,
    clients_of: Counter[Entity] | None = None,
) -> list[Suggestion]:
    in_force = {entity: {KEY: value} for entity, value in (rules or {}).items()}
    usage = KeyUsage(
        KEY, Dimension.USER, "20 users", in_force, free, kept or [], clients_of or Counter(), frozenset(in_force)
    )
    return suggestions(usage)


def of(kind: Kind, suggested: list[Suggestion]) -> list[Suggestion]:
    return [suggestion for suggestion in suggested if suggestion.kind is kind]


def test_a_fleet_without_rules_gets_a_default_and_quotas_of_outliers() -> None:
    default, own = judged(fleet(demand("big", 5000.0, peak=7000.0)))
    assert (default.kind, default.entity, default.limit) == (Kind.DEFAULT, DEFAULT, None)
    assert (default.suggested_limit, default.clients) == (150.0, 20)
    assert default.reason == (
        "20 of 21 users want at most 119 B/s at a broker (99th percentile of five minutes), 79.3 % of the limit;"
        " the others want more than 230 B/s; by user: 20 users"
    )
    assert (own.kind, own.entity, own.suggested_limit) == (Kind.OWN, (("user", "big"),), 6300.0)
    assert own.reason == (
        "wants 5.0 kB/s at broker 1; 33.3 times the default of 150 B/s;"
        " at its peak it wants 7.0 kB/s, more than the limit"
    )


def test_demand_under_throttling_is_the_estimate_or_is_said_to_be_unknown() -> None:
    suggested = judged(
        fleet(
            demand("held", 1000.0, high=3000.0, throttled_share=0.5),
            demand("full", 1000.0, high=None, throttled_share=1.0),
        ),
        {DEFAULT: 1000.0},
    )
    held, full = of(Kind.OWN, suggested)
    assert (held.suggested_limit, full.suggested_limit) == (3800.0, 1300.0)
    assert "it was throttled in 50.0 % of the five minutes" in held.reason
    assert "its demand is not known, and the limit may be below it" in full.reason
    assert (held.confidence, full.confidence) == ("high", "low")


@pytest.mark.parametrize(
    ("current", "throttled", "suggested"),
    [
        (126.0, 0.0, 126.0),  # nobody wants more than 95 % of it
        (125.0, 0.0, 150.0),
        (1400.0, 0.0, 1400.0),
        (1500.0, 0.0, 150.0),  # ten times what fits
        (1500.0, 0.1, 1500.0),  # whom it throttles gets no less
    ],
)
def test_the_default_in_force_stays_where_it_fits(current: float, throttled: float, suggested: float) -> None:
    rows = judged(fleet(demand("u", 100.0, throttled_share=throttled)), {DEFAULT: current})
    assert (rows[0].limit, rows[0].suggested_limit) == (current, suggested)
    assert ("the default in force stays" in rows[0].reason) == (current == suggested)


def test_a_name_that_no_quota_can_have_is_reported_without_a_limit() -> None:
    (own,) = of(Kind.OWN, judged(fleet(demand("a\N{REPLACEMENT CHARACTER}", 9000.0))))
    assert (own.suggested_limit, own.changes) == (None, False)
    assert "no quota can have this name" in own.reason


def test_rules_that_stay_are_judged_by_their_buckets() -> None:
    held, burst, huge, fits, gone = ((("user", name),) for name in ("held", "burst", "huge", "fits", "gone"))
    rules: dict[Entity, float] = {held: 1000.0, burst: 1000.0, huge: 1e6, fits: 1000.0, gone: 700.0}
    kept = [
        demand("held", 1000.0, high=2000.0, throttled_share=0.5, limit=1000.0, matched_entity="user=held"),
        demand("burst", 300.0, throttled_share=0.01, limit=1000.0, matched_entity="user=burst"),
        demand("huge", 300.0, limit=1e6, matched_entity="user=huge"),
        demand("fits", 300.0, limit=1000.0, matched_entity="user=fits"),
    ]
    suggested = judged(fleet(), rules, kept, Counter({held: 1, burst: 1, huge: 1, fits: 1}))
    assert {(suggestion.kind, suggestion.entity, suggestion.suggested_limit) for suggestion in suggested[1:]} == {
        (Kind.RAISE, held, 2500.0),
        (Kind.RAISE, burst, 1000.0),  # never below what it has
        (Kind.TOO_HIGH, huge, 380.0),
        (Kind.NEVER_USED, gone, None),
        (Kind.FITS, fits, 1000.0),
    }
    assert of(Kind.FITS, suggested)[0].reason == "at the peak 300 B/s of 1.0 kB/s are used, 30.0 %"
    assert "it is throttled in shorter bursts" in of(Kind.RAISE, suggested)[1].reason
    assert [
        suggestion.changes for suggestion in suggested if suggestion.kind in (Kind.TOO_HIGH, Kind.NEVER_USED, Kind.FITS)
    ] == [False] * 3


def test_a_bucket_of_a_default_of_several_gets_a_quota_of_its_own() -> None:
    rule: Entity = (("user", "alice"), ("client-id", None))
    of_rule: dict[str, Any] = {"limit": 900.0, "matched_entity": "user=alice, client-id=<default>"}
    kept = [
        demand("alice", 900.0, high=2000.0, throttled_share=0.5, **of_rule)._replace(client_id="app"),
        demand("alice", 600.0, **of_rule)._replace(client_id="other"),
    ]
    suggested = judged(fleet(), {rule: 900.0}, kept, Counter({rule: 2}))
    (own,), (other,) = of(Kind.OWN, suggested), of(Kind.FITS, suggested)
    assert (other.entity, other.clients, other.demand) == (rule, 1, kept[1])
    assert (own.entity, own.limit, own.suggested_limit) == ((("user", "alice"), ("client-id", "app")), 900.0, 2500.0)


def test_a_default_that_takes_precedence_over_rules_says_so() -> None:
    rule: Entity = (("client-id", "app"),)
    (default,) = judged(fleet(), {rule: 5.0}, clients_of=Counter({rule: 3}))
    assert "it takes precedence over 1 of the rules in force (3 clients), such as client-id=app" in default.reason


def test_without_usage_nothing_is_suggested() -> None:
    assert judged([demand("idle", 0.0)]) == []


def test_few_clients_or_unknown_demands_make_a_default_uncertain() -> None:
    assert judged([demand(name, 100.0) for name in "abc"])[0].confidence == "low"
    assert judged([demand(name, 100.0) for name in "abcd"])[0].confidence == "high"
    assert judged([demand("a", 90.0, high=None), *(demand(name, 100.0) for name in "bcd")])[0].confidence == "low"


def test_the_replay_is_part_of_the_reason() -> None:
    default = judged(fleet())[0]
    assert default.replayed(Replayed()).reason.endswith(
        "; replayed, its recorded bytes would never have been throttled"
    )
    some = default.replayed(Replayed(3, 0.0001, 0.25))
    assert (some.throttled_clients, some.throttled_share) == (3, 0.0001)
    assert some.reason.endswith(
        "3 of its clients would have been throttled, up to 0.01 % of the time, recorded is up to 25.0 %"
    )


@given(st.lists(st.tuples(st.floats(0.5, 1e9), st.floats(1.0, 50.0), st.booleans()), min_size=1, max_size=40))
def test_no_limit_is_below_what_its_clients_need_without_saying_so(drawn: list[tuple[float, float, bool]]) -> None:
    free = [
        demand(f"u{number}", low, high=None if is_unknown else low * more, throttled_share=0.5)
        for number, (low, more, is_unknown) in enumerate(drawn)
    ]
    suggested = judged(free)
    limits = {dict(bucket.entity)["user"]: bucket for bucket in suggested}
    for bucket in free:
        chosen = limits.get(bucket.user, limits[None])
        assert chosen.suggested_limit is not None
        assert chosen.suggested_limit >= bucket.need
        if bucket.high is None:
            assert "not known, and the limit may be below it" in chosen.reason
