"""The YAML file of quotas: what it means, every error of a bad one, what it changes, and how that is brought back."""

import datetime
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from exporters.model import QuotaKey
from quota_metrics.config.broker_refusals import altered
from quota_metrics.config.entities import Entity, QuotaAlteration, entity_of
from quota_metrics.config.quota_file import DeclaredQuota, declared_of, parse_declared_file, quota_file, writable
from quota_metrics.config.quota_plan import (
    Action,
    QuotaPlan,
    cluster_fingerprint,
    differences,
    quota_plan,
    requests,
    undo,
)
from tests.kit.kafka.quota_files import quotas_of

GOOD = """
quotas:
  - entity: {user: alice, client-id: <default>}
    values: {producer_byte_rate: 10 MiB, consumer_byte_rate: 5e6, request_percentage: "12.5"}
    owner: payments
    comment: two instances of the settlement job
    expires: 2027-03-31
  - entity: {ip: 10.0.0.1}
    values: {connection_creation_rate: 7}
  - entity: {user: "12"}
    values: {producer_byte_rate: null}
"""
BAD = """
quotas:
  - entity: {user: 12, client-id: ""}
    values: {producer_byte_rate: 1}
  - entity: {user: alice, client_id: x}  # as Aiven has it; then Strimzi's key, and at the end an entry of rpk
    values: {producer_byte_rate: fast, producerByteRate: 1}
    ownr: payments
  - values: {}
  - entity: {user: bob}
    values: {producer_byte_rate: 512 kiB, request_percentage: 1 MiB}
    expires: soon
    comment: [1]
  - entity: {client-id: app}
    values: {producer_byte_rate: 1}
  - entity: {client-id: app}
    values: {producer_byte_rate: 2}
  - entity: {ip: 10.0.0.1}
    values: {producer_byte_rate: 2}
  - text
  - entity: {user: carol}
    values: {producer_byte_rate: 1.5, consumer_byte_rate: -1}
  - entity: {}
    values: {producer_byte_rate: 5}
  - entity: [{name: <default>, type: client-id}]
    values: [{key: producer_byte_rate, value: "1111"}]
"""


def test_file_is_read() -> None:
    alice, address, number = quotas_of(GOOD)
    assert alice == DeclaredQuota(
        entity_of({"user": "alice", "client-id": None}),
        {"producer_byte_rate": 10.0 * 2**20, "consumer_byte_rate": 5e6, "request_percentage": 12.5},
        "payments",
        "two instances of the settlement job",
        datetime.date(2027, 3, 31),
    )
    assert (address.entity, address.values) == ((("ip", "10.0.0.1"),), {"connection_creation_rate": 7.0})
    assert (number.entity, number.values) == ((("user", "12"),), {"producer_byte_rate": None})


def test_no_value_is_in_force_from_its_expiry_on() -> None:
    alice, *_ = quotas_of(GOOD)
    assert alice.in_force(datetime.date(2027, 3, 30)) == alice.values
    assert set(alice.in_force(datetime.date(2027, 3, 31)).values()) == {None}


def test_every_error_is_named_with_its_line_and_entries_without_errors_are_taken() -> None:
    file = parse_declared_file(BAD)
    units = "with a unit (kB, MB, GB, KiB, MiB, GiB) or null"
    assert file.errors == [
        "line 3: user is not text: quote it, or write <default>",
        "line 3: client-id is empty: name it, or write <default>",
        "line 5: `entity` has no field 'client_id', only user, client-id, ip",
        f"line 6: producer_byte_rate is not a number, {units}",
        f"line 6: `values` has no field 'producerByteRate', only {', '.join(key.value for key in QuotaKey)}",
        "line 7: the entry has no field 'ownr', only entity, values, owner, comment, expires",
        "line 8: the entry has no `entity`",
        f"line 10: producer_byte_rate is not a number, {units}",
        "line 10: request_percentage is not a number or null",
        "line 12: comment is not text of at most 1000 characters",
        "line 11: expires is not a date, as 2027-03-31",
        "line 15: {client-id=app} a second time",
        "line 18: {ip=10.0.0.1}: Invalid configuration key producer_byte_rate",
        "line 19: the entry is not a mapping",
        "line 21: {user=carol}: producer_byte_rate cannot be a fractional value.",
        "line 21: {user=carol}: Quota consumer_byte_rate must be greater than 0",
        "line 22: the entity names none of user, client-id, ip",
        "line 24: entity is not a mapping",
        "line 25: values is not a mapping",
    ]
    assert file.quotas == [DeclaredQuota(entity_of({"client-id": "app"}), {"producer_byte_rate": 1.0})]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("{producer_byte_rate: .nan}", "Quota producer_byte_rate must be greater than 0"),
        ("{}", "`values` is empty"),
        ("{producer_byte_rate: true}", "producer_byte_rate is not a number"),
        ("{producer_byte_rate: 1, producer_byte_rate: 2}", "producer_byte_rate a second time"),
    ],
)
def test_values_that_a_broker_refuses_are_errors(values: str, message: str) -> None:
    (error, *_) = parse_declared_file(f"quotas: [{{entity: {{user: u}}, values: {values}}}]").errors
    assert error.startswith("line 1: ")
    assert message in error


OTHERS = [
    "",
    "[]",
    "quotas: 1",
    "a: [",
    "quotas: []\nmore: 1",
    "? [a]\n: 1",
    "quotas: [*a]",
    "quotas: [{[a]: 1}]",
    b"\xff",
    "&a [*a]",
    "[" * 9000,
]


@pytest.mark.parametrize("content", OTHERS)
def test_other_documents_are_refused(content: str | bytes) -> None:
    assert len(parse_declared_file(content).errors) == 1


NAMES = st.none() | st.text(min_size=1).filter(lambda name: name != "<default>")
ENTITIES = st.fixed_dictionaries({}, optional={"user": NAMES, "client-id": NAMES}).filter(bool).map(entity_of)
VALUES = st.dictionaries(
    st.sampled_from(["producer_byte_rate", "consumer_byte_rate"]), st.integers(1, 2**53).map(float), min_size=1
) | st.just({"request_percentage": math.inf})


@given(st.dictionaries(ENTITIES, VALUES), st.text())
@example({(("user", "bob"),): {"consumer_byte_rate": 1.0}}, "\x85")  # a line break to YAML
def test_exported_rules_and_texts_are_read_again(rules: dict[Entity, dict[str, float]], said: str) -> None:
    quotas = declared_of(rules, [DeclaredQuota(entity, {}, said, said) for entity in rules])
    subscriptions = {f"all{said}": {"match": f"client_id={said}"}}
    again = parse_declared_file(quota_file(quotas, "a\nheading", subscriptions))
    assert (again.quotas, again.subscriptions, again.errors) == (quotas, subscriptions, [])


def test_what_a_file_cannot_hold_is_named_and_the_rest_is_held() -> None:
    alice = entity_of({"user": "alice"})
    odd = {
        entity_of({"user": "<default>"}): {"producer_byte_rate": 5.0},
        entity_of({"user": "", "client-id": "<default>"}): {"producer_byte_rate": 5.0},
        entity_of({"client-id-prefix": "a"}): {"producer_byte_rate": 5.0},  # Redpanda's
        entity_of({"user": ""}): {"producer_byte_rate": 5.0},
        entity_of({"ip": "10.0.0.1", "user": "a"}): {"connection_creation_rate": 5.0},
    }
    values = {
        "producer_byte_rate": math.inf,
        "request_percentage": math.nan,
        "new_rate": 1.0,
        "consumer_byte_rate": 7.0,
    }
    held, others = writable({**odd, alice: values})
    assert held == {alice: {"consumer_byte_rate": 7.0}}
    assert len(others) == len(odd) + 3
    assert others[0] == "{user=%3Cdefault%3E}: in a file the name <default> is the default entity"
    assert "new_rate=1 of {user=alice}: Invalid configuration key new_rate" in others
    assert quotas_of(quota_file(declared_of(held)))[0].values == {"consumer_byte_rate": 7.0}


def test_sections_are_optional() -> None:
    assert parse_declared_file("subscriptions:").subscriptions == {}
    assert parse_declared_file("subscriptions: []").subscriptions == []
    assert parse_declared_file("subscriptions: {}").quotas is None


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


HOLDERS = st.sampled_from([ALICE, BOB, entity_of({"client-id": None}), entity_of({"user": "a", "client-id": "b"})])
KEYS = st.sampled_from([PRODUCER, CONSUMER])
RULES = st.dictionaries(HOLDERS, st.dictionaries(KEYS, st.integers(1, 9).map(float), min_size=1))
DECLARED = st.dictionaries(HOLDERS, st.dictionaries(KEYS, st.none() | st.integers(1, 9).map(float), min_size=1)).map(
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


def test_undo_brings_subscriptions_back() -> None:
    current = {"all": {"metrics": "a.", "interval.ms": "1000"}}
    changes, _ = differences(current, {"all": {"metrics": "b."}, "new": {"metrics": "c."}})
    plan = QuotaPlan("", [], [], changes)
    assert plan.altered_subscriptions == {"all": {"metrics": "b."}, "new": {"metrics": "c."}}
    assert undo(plan) == ([], {"all": {"metrics": "a."}, "new": {"metrics": None}})
