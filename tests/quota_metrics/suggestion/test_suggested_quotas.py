"""Suggested quotas: whom they are for, what a fleet needs, what changes, and what the reasons say."""

import itertools
import math
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quota_metrics.config.broker_refusals import altered
from quota_metrics.config.entities import Entity, QuotaAlteration, entity_of
from quota_metrics.config.resolution import Resolver, bucket_names
from quota_metrics.suggestion.dimension import OF_ONE_RUN, Dimension, Fleet, dimension_of, is_nameable, placed
from quota_metrics.suggestion.suggested_quotas import (
    TARGET,
    Confidence,
    Demand,
    KeyUsage,
    Kind,
    Replayed,
    Suggestion,
    bulk,
    confidence,
    fitting,
    suggestions,
)

KEY = "consumer_byte_rate"
SPARK = "consumer-spark-kafka-source-311c5061-6582-4a61-80f7-6296ced6ef3b-135981209-executor-1"
USERS = Fleet(users=20, clients=60, most_of_user=5)


def entity(user: str | None = "", client_id: str | None = "") -> Entity:
    """ "" is no part, None the default."""
    return entity_of({kind: name for kind, name in (("user", user), ("client-id", client_id)) if name != ""})


@pytest.mark.parametrize(
    ("rules", "fleet", "expected"),
    [
        ([], Fleet(0, 200, 0), Dimension.CLIENT_ID),
        ([], Fleet(1, 200, 200), Dimension.CLIENT_ID),
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


# Of Streams, ksqlDB, Spring Cloud Stream, NiFi, an iPhone, Flink without a group.
OF_RUNS = """
    wordcount-application-c02ff79f-9c3e-4339-b41a-d01f280f5bdc-StreamThread-1-producer
    _confluent-ksql-playground_query_CSAS_SENSORS_3-cc09a551-5ef3-4a39-9673-38a35e3ede58-StreamThread-1-consumer
    consumer-anonymous.9970e654-e9f3-49c8-9d1e-14326b9748a9-1 producer-2bbc9134-b3b1-4768-8b8d-0c3c9330d125
    telemetry-5F0C7E3B-11D2-4E5A-9C1B-0A8F6D2E4B77 KafkaSource-9118031035355668652-0
    KafkaSource--7118031035355668652-enumerator-consumer
"""
# Of Flink with a group, Connect, MirrorMaker 2, Streams with a client.id, Quarkus, Spring; defaults of libraries.
LASTING = """
    KafkaSource-orders-3 connector-consumer-s3-sink-12 A->B|A->B-0|offset-syncs-source-producer kafka-producer-prices
    orders-StreamThread-1-producer producer-sandbox-tx-0 consumer-null-1 logstash-0 rdkafka kafka-python-2.0.2 Telegraf
"""


def test_client_ids_that_look_made_for_one_run() -> None:
    assert [name for name in (*OF_RUNS.split(), SPARK) if not OF_ONE_RUN.search(name)] == []
    assert [name for name in LASTING.split() if OF_ONE_RUN.search(name)] == []


def test_names_that_stand_for_others_cannot_be_named() -> None:
    names = ("", "<default>", "a\N{REPLACEMENT CHARACTER}", "x" * 238 + "~" + "0" * 16, "a~b")
    assert [name for name in names if is_nameable(name)] == ["a~b"]


DEMANDS = st.lists(st.floats(1e-3, 1e12), min_size=1, max_size=60)


@given(DEMANDS)
def test_at_least_three_quarters_are_within_the_fence(demands: list[float]) -> None:
    majority = bulk(demands)
    within = sorted(demand for demand in demands if demand <= majority.fence)
    assert (len(within), within[-1]) == (majority.size, majority.highest)
    assert majority.size >= 0.75 * (len(demands) - 1)


@pytest.mark.parametrize("sigma", [0.1, 0.5, 1.0, 1.5])
def test_a_log_normal_fleet_has_no_outliers_but_planted_ones(sigma: float) -> None:
    """Of 40 fleets of 200; the median of 100 is known, planted are clients five deviations above it."""
    draw = random.Random(int(sigma * 10))
    false = 0
    for _ in range(40):
        fleet = [100 * math.exp(draw.gauss(0, sigma)) for _ in range(200)]
        planted = 100 * math.exp(max(7 * sigma, 1.2))
        majority = bulk([*fleet, planted])
        false += sum(demand > majority.fence for demand in fleet)
        assert planted > majority.fence
    assert false <= 16  # 8000 clients, of which one in 2,500 is beyond: 3 are expected


@pytest.mark.parametrize(
    ("demands", "size"),
    [
        ([5.0], 1),
        ([1.0, 100.0], 1),
        ([1.0, 1.0, 100.0], 2),
        ([7.0] * 30 + [14.0], 31),  # twice as much is no outlier
        ([7.0] * 30 + [14.1], 30),
        ([1e-3] * 100 + [50.0] * 110, 210),  # half of the clients are idle
        ([1.0] * 80 + [1000.0] * 20, 80),
    ],
)
def test_bulk_of_small_and_mixed_fleets(demands: list[float], size: int) -> None:
    assert bulk(demands).size == size


@given(st.floats(1e-6, 1e15), st.sampled_from(["producer_byte_rate", "request_percentage"]))
def test_a_limit_fits_and_is_round(demand: float, key: str) -> None:
    limit = fitting(demand, key)
    assert limit >= demand / TARGET * (1 - 1e-9)
    assert limit <= max(demand / TARGET * 1.1, demand / TARGET + (key == "producer_byte_rate")) + 1e-9
    assert float(f"{limit:.2g}") == pytest.approx(limit)
    assert key == "request_percentage" or limit.is_integer()


@pytest.mark.parametrize(
    ("days", "is_certain", "expected"),
    [(1, True, "low"), (2, True, "medium"), (6, True, "medium"), (7, True, "high"), (30, False, "low")],
)
def test_confidence_by_days(days: int, is_certain: bool, expected: str) -> None:
    assert confidence(days, is_certain=is_certain) is Confidence(expected)


DEFAULT: Entity = (("user", None),)


def demand(user: str, low: float, *, high: float | None = -1.0, peak: float = 0.0, **more: Any) -> Demand:
    """Of one who was not throttled, unless `high` or `throttled_share` say so."""
    wanted = low if high == -1.0 else high
    need = wanted or low
    throttled_limit = more.get("limit") if "throttled_share" in more else None
    stated = {"days": 7, "throttled_share": 0.0, "throttled_limit": throttled_limit, **more}
    return Demand(user, "", 1, need, low, wanted, "usage", max(peak, need), **stated)


def fleet(*extra: Demand) -> list[Demand]:
    return [*(demand(f"u{number}", 1e3 * (100 + number)) for number in range(20)), *extra]


def judged(
    free: list[Demand],
    rules: dict[Entity, float] | None = None,
    kept: list[Demand] | None = None,
    clients_of: Counter[Entity] | None = None,
    key: str = KEY,
) -> list[Suggestion]:
    in_force = {entity: {key: value} for entity, value in (rules or {}).items()}
    usage = KeyUsage(
        key, Dimension.USER, "20 users", in_force, free, kept or [], clients_of or Counter(), frozenset(in_force)
    )
    return suggestions(usage)


def of(kind: Kind, suggested: list[Suggestion]) -> list[Suggestion]:
    return [suggestion for suggestion in suggested if suggestion.kind is kind]


def test_a_fleet_without_rules_gets_a_default_and_quotas_of_outliers() -> None:
    default, own = judged(fleet(demand("big", 5e6, peak=7e6)))
    assert (default.kind, default.entity, default.limit) == (Kind.DEFAULT, DEFAULT, None)
    assert (default.suggested_limit, default.clients) == (150e3, 20)
    assert default.reason == (
        "20 of 21 users want at most 119.0 kB/s at a broker (99th percentile of five minutes), 79.3 % of the limit;"
        " the others want more than 230.0 kB/s; by user: 20 users"
    )
    assert (own.kind, own.entity, own.suggested_limit) == (Kind.OWN, (("user", "big"),), 6.3e6)
    assert own.reason == (
        "wants 5.0 MB/s at broker 1; 33.3 times the default of 150.0 kB/s;"
        " at its peak it wants 7.0 MB/s, more than the limit"
    )


@pytest.mark.parametrize(("days", "is_outlier"), [((3, 3), False), ((2, 3), True), ((7, 7), True)])
def test_who_was_seen_on_one_day_only_gets_no_quota_of_its_own(days: tuple[int, int], is_outlier: bool) -> None:
    usual = [bucket._replace(first_day=1, last_day=7) for bucket in fleet()]
    run = demand("etl", 5e6, days=1)._replace(client_id=SPARK, first_day=days[0], last_day=days[1])
    default, *own = judged([*usual, run])
    assert ["made for one run" in row.reason for row in own] == [True] * is_outlier
    assert ("1 of these users were seen on one day only" in default.reason) != is_outlier


def test_demand_under_throttling_is_the_estimate_or_is_said_to_be_unknown() -> None:
    suggested = judged(
        fleet(
            demand("held", 1e6, high=3e6, throttled_share=0.5),
            demand("full", 1e6, high=None, throttled_share=1.0),
        ),
        {DEFAULT: 1e6},
    )
    held, full = of(Kind.OWN, suggested)
    assert (held.suggested_limit, full.suggested_limit) == (3.8e6, 1.3e6)
    assert "it was throttled in 50.0 % of the five minutes" in held.reason
    assert "its demand is not known, and the limit may be below it" in full.reason
    assert (held.confidence, full.confidence) == ("high", "low")


@pytest.mark.parametrize(
    ("current", "throttled", "suggested"),
    [
        (126e3, 0.0, 126e3),  # nobody wants more than 95 % of it
        (125e3, 0.0, 150e3),
        (1.4e6, 0.0, 1.4e6),
        (1.5e6, 0.0, 150e3),  # ten times what fits
        (1.5e6, 0.1, 1.5e6),  # whom it throttles gets no less
    ],
)
def test_the_default_in_force_stays_where_it_fits(current: float, throttled: float, suggested: float) -> None:
    rows = judged(fleet(demand("u", 100e3, throttled_share=throttled)), {DEFAULT: current})
    assert (rows[0].limit, rows[0].suggested_limit) == (current, suggested)
    assert ("the default in force stays" in rows[0].reason) == (current == suggested)


@pytest.mark.parametrize("key", [KEY, "producer_byte_rate"])
@pytest.mark.parametrize(
    ("current", "throttled", "suggested"),
    [(None, 0.0, 110e3), (150.0, 0.0, 150.0), (150.0, 0.1, 110e3), (100.0, 0.0, 110e3)],
)
def test_a_new_limit_takes_a_batch(current: float | None, throttled: float, suggested: float, key: str) -> None:
    """A smaller one stops consumers and mutes producers for minutes. One in force that throttles nobody stays."""
    free = [*(demand(f"u{number}", 100.0, throttled_share=throttled) for number in range(20)), demand("big", 5000.0)]
    rows = judged(free, {} if current is None else {DEFAULT: current}, key=key)
    changed = [*of(Kind.DEFAULT, rows), *of(Kind.OWN, rows)]
    assert [row.suggested_limit for row in changed] == [suggested, 110e3][: 1 + (suggested < 5000)]
    assert [row.suggested_limit == 110e3 for row in changed] == ["one batch of 1 MiB" in row.reason for row in changed]


@pytest.mark.parametrize("need", [0.0, 990.0])
def test_a_consumer_that_its_rule_stops_gets_a_limit_that_takes_a_batch(need: float) -> None:
    held = demand("held", need, high=None, throttled_share=1.0, limit=1000.0, matched_entity="user=held")
    (raised,) = of(Kind.RAISE, judged(fleet(), {entity("held"): 1000.0}, [held]))
    assert (raised.suggested_limit, "so that it stops no consumer" in raised.reason) == (110e3, True)


def test_a_name_that_no_quota_can_have_is_reported_without_a_limit() -> None:
    (own,) = of(Kind.OWN, judged(fleet(demand("a\N{REPLACEMENT CHARACTER}", 9e6))))
    assert (own.suggested_limit, own.changes) == (None, False)
    assert "no quota can have this name" in own.reason


def test_rules_that_stay_are_judged_by_their_buckets() -> None:
    names = ("held", "burst", "huge", "fits", "gone", "raised", "lowered")
    held, burst, huge, fits, gone, raised, lowered = ((("user", name),) for name in names)
    rules: dict[Entity, float] = {held: 1e6, burst: 1e6, huge: 1e9, fits: 1e6, gone: 700e3}
    rules |= {raised: 3e6, lowered: 500e3}  # since the newest row
    kept = [
        demand("held", 1e6, high=2e6, throttled_share=0.5, limit=1e6, matched_entity="user=held"),
        demand("burst", 300e3, throttled_share=0.01, limit=1e6, matched_entity="user=burst"),
        demand("huge", 300e3, limit=1e9, matched_entity="user=huge"),
        demand("fits", 300e3, limit=1e6, matched_entity="user=fits"),
        demand("raised", 990e3, high=2e6, throttled_share=0.4, limit=1e6, matched_entity="user=raised"),
        demand("lowered", 600e3, limit=1e6, matched_entity="user=lowered"),
    ]
    suggested = judged(fleet(), rules, kept, Counter(rules.keys() - {gone}))
    assert {(suggestion.kind, suggestion.entity, suggestion.suggested_limit) for suggestion in suggested[1:]} == {
        (Kind.RAISE, held, 2.5e6),
        (Kind.RAISE, burst, 1e6),  # never below what it has
        (Kind.TOO_HIGH, huge, 380e3),
        (Kind.NEVER_USED, gone, None),
        (Kind.FITS, fits, 1e6),
        (Kind.FITS, raised, 3e6),
        (Kind.RAISE, lowered, 750e3),
    }
    assert of(Kind.FITS, suggested)[0].reason == "at the peak 300.0 kB/s of 1.0 MB/s are used, 30.0 %"
    assert "it is throttled in shorter bursts" in of(Kind.RAISE, suggested)[2].reason
    assert [
        suggestion.changes for suggestion in suggested if suggestion.kind in (Kind.TOO_HIGH, Kind.NEVER_USED, Kind.FITS)
    ] == [False] * 4


@pytest.mark.parametrize(("limit", "kind"), [(8e3, Kind.FITS), (110e3, Kind.FITS), (1.1e6, Kind.TOO_HIGH)])
def test_what_would_fit_takes_a_batch(limit: float, kind: Kind) -> None:
    quiet = demand("quiet", 111.0, limit=limit, matched_entity="user=quiet")
    (found,) = judged([], {entity("quiet"): limit}, [quiet], Counter([entity("quiet")]))
    assert (found.kind, found.suggested_limit) == (kind, min(limit, 110e3))


def test_a_bucket_of_a_default_of_several_gets_a_quota_of_its_own() -> None:
    rule: Entity = (("user", "alice"), ("client-id", None))
    of_rule: dict[str, Any] = {"limit": 900e3, "matched_entity": "user=alice, client-id=<default>"}
    kept = [
        demand("alice", 900e3, high=2e6, throttled_share=0.5, **of_rule)._replace(client_id="app"),
        demand("alice", 600e3, **of_rule)._replace(client_id="other"),
    ]
    suggested = judged(fleet(), {rule: 900e3}, kept, Counter({rule: 2}))
    (own,), (other,) = of(Kind.OWN, suggested), of(Kind.FITS, suggested)
    assert (other.entity, other.clients, other.demand) == (rule, 1, kept[1])
    assert (own.entity, own.limit, own.suggested_limit) == ((("user", "alice"), ("client-id", "app")), 900e3, 2.5e6)


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
    new = [demand(name, 100.0, days=1) for name in "bcd"]
    assert judged([demand("canary", 100.0, days=8), *new])[0].confidence == "low"


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
    part = default.replayed(Replayed(days=2, of_days=7, busiest=4000)).reason
    assert "; replayed on 2 of 7 days for the busiest 4000 clients, its recorded bytes would never" in part


@given(st.lists(st.tuples(st.floats(0.5, 1e9), st.floats(1.0, 50.0), st.booleans()), min_size=1, max_size=40))
@example([(1.0, 1.0, False), (3.0, 1.0, True)])  # beyond the fence, within the least limit of bytes
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
