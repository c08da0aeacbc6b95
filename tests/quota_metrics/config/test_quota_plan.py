"""What a file changes in a cluster, and how it is brought back."""

from __future__ import annotations

import datetime

from hypothesis import given
from hypothesis import strategies as st

from quota_metrics.config.broker_refusals import altered
from quota_metrics.config.entities import Entity, QuotaAlteration, entity_of
from quota_metrics.config.quota_file import DeclaredQuota
from quota_metrics.config.quota_plan import (
    Action,
    QuotaPlan,
    cluster_fingerprint,
    quota_plan,
    requests,
    subscription_differences,
    undo,
)

TODAY = datetime.date(2026, 11, 23)
ALICE, BOB = entity_of({"user": "alice"}), entity_of({"user": "bob"})
PRODUCER, CONSUMER = "producer_byte_rate", "consumer_byte_rate"


def test_only_values_of_the_file_change() -> None:
    rules = {ALICE: {PRODUCER: 5.0, CONSUMER: 6.0}, BOB: {PRODUCER: 7.0}}
    plan = quota_plan(rules, [DeclaredQuota(ALICE, {PRODUCER: 9.0, "request_percentage": 1.0}, "team")], TODAY)
    assert [(change.action, change.key, change.before, change.after, change.owner) for change in plan.changes] == [
        (Action.CHANGE, PRODUCER, 5.0, 9.0, "team"),
        (Action.SET, "request_percentage", None, 1.0, "team"),
    ]
    assert [(change.holder, change.key) for change in plan.unmanaged] == [(ALICE, CONSUMER), (BOB, PRODUCER)]


def test_expired_entries_are_removed() -> None:
    expired = DeclaredQuota(ALICE, {PRODUCER: 5.0, CONSUMER: 5.0}, expires=TODAY)
    plan = quota_plan({ALICE: {PRODUCER: 5.0}}, [expired], TODAY)
    assert [(change.action, change.key, change.why) for change in plan.changes] == [
        (Action.REMOVE, PRODUCER, "expired on 2026-11-23")
    ]


def test_requests_hold_few_enough_values_and_whole_entities() -> None:
    alterations = [QuotaAlteration(((("user", str(n)),)), {PRODUCER: 1.0, CONSUMER: 1.0}) for n in range(10)]
    batches = list(requests(alterations, most=5))
    assert [len(batch) for batch in batches] == [2] * 5
    assert [change for batch in batches for change in batch] == alterations
    assert list(requests([], most=5)) == []


def test_fingerprint_ignores_order_and_entities_without_values() -> None:
    rules = {ALICE: {PRODUCER: 5.0, CONSUMER: 6.0}, BOB: {PRODUCER: 7.0}}
    again: dict[Entity, dict[str, float]] = {BOB: {PRODUCER: 7.0}, ALICE: {CONSUMER: 6.0, PRODUCER: 5.0}, (): {}}
    assert cluster_fingerprint(rules) == cluster_fingerprint(again)
    assert cluster_fingerprint(rules) != cluster_fingerprint({**rules, BOB: {PRODUCER: 8.0}})


ENTITIES = st.sampled_from([ALICE, BOB, entity_of({"client-id": None}), entity_of({"user": "a", "client-id": "b"})])
KEYS = st.sampled_from([PRODUCER, CONSUMER])
RULES = st.dictionaries(ENTITIES, st.dictionaries(KEYS, st.integers(1, 9).map(float), min_size=1))
DECLARED = st.dictionaries(ENTITIES, st.dictionaries(KEYS, st.none() | st.integers(1, 9).map(float), min_size=1)).map(
    lambda quotas: [DeclaredQuota(entity, values) for entity, values in quotas.items()]
)


@given(RULES, DECLARED, st.booleans())
def test_apply_is_idempotent_and_undo_brings_back(
    rules: dict[Entity, dict[str, float]], declared: list[DeclaredQuota], prune: bool
) -> None:
    plan = quota_plan(rules, declared, TODAY, prune=prune)
    applied = altered(rules, *plan.alterations)
    assert quota_plan(applied, declared, TODAY, prune=prune).changes == []
    back = quota_plan(applied, undo(plan)[0], TODAY)
    assert altered(applied, *back.alterations) == rules


def test_subscriptions_change_where_they_differ_and_the_undo_brings_them_back() -> None:
    current = {"all": {"metrics": "a.", "interval.ms": "1000"}}
    changes, unmanaged = subscription_differences(current, {"all": {"metrics": "b."}, "new": {"metrics": "c."}})
    assert [(change.holder, change.action, change.before, change.after) for change in changes] == [
        ("all", Action.CHANGE, "a.", "b."),
        ("new", Action.SET, None, "c."),
    ]
    assert [(change.key, change.after) for change in unmanaged] == [("interval.ms", None)]
    plan = QuotaPlan("", [], [], changes)
    assert plan.altered_subscriptions == {"all": {"metrics": "b."}, "new": {"metrics": "c."}}
    assert undo(plan) == ([], {"all": {"metrics": "a."}, "new": {"metrics": None}})
