"""Which rows a change of quotas creates, which quotas were in force when, and which clients a change affects."""

import math

from exporters.model import QuotaLimit, RecordKind
from exporters.spool.records import decode_rows, encode_rows
from quota_metrics.config.entities import QuotaAlteration, entity_of
from quota_metrics.config.timeline import LimitHistory, configurations, epochs, unrecorded
from quota_metrics.windows import UNLIMITED

ALICE, ANYONE = entity_of({"user": "alice"}), entity_of({"user": None})
ALICE_ANY_CLIENT = entity_of({"client-id": None, "user": "alice"})
PRODUCER, CONSUMER = "producer_byte_rate", "consumer_byte_rate"


def row(ms: int, value: float | None, user: str = "alice", client_id: str = "", key: str = PRODUCER) -> QuotaLimit:
    return QuotaLimit("c", user, client_id, "", key, ms, value)


def test_first_read_records_all_limits_and_the_second_none() -> None:
    history = LimitHistory("c")
    described = {ALICE: {PRODUCER: 10.0, CONSUMER: 20.0}, ALICE_ANY_CLIENT: {PRODUCER: 5.0}}
    assert history.changes(described, 1) == [
        row(1, 10.0),
        row(1, 20.0, key=CONSUMER),
        row(1, 5.0, client_id="<default>"),
    ]
    assert history.changes(described, 2) == []


def test_changed_and_removed_values_are_recorded() -> None:
    history = LimitHistory("c")
    history.changes({ALICE: {PRODUCER: 10.0, CONSUMER: 20.0}}, 1)
    assert history.changes({ALICE: {PRODUCER: 11.0}}, 2) == [
        row(2, 11.0),
        row(2, None, key=CONSUMER),
    ]
    assert history.changes({}, 3) == [row(3, None)]
    assert history.changes({ALICE: {PRODUCER: 11.0}}, 4) == [row(4, 11.0)]


def test_stored_limits_are_not_recorded_again() -> None:
    stored = [
        row(5, None, key=CONSUMER),
        row(1, 10.0),
        row(4, 11.0),
        row(2, 20.0, key=CONSUMER),
        row(1, 1.0, "bob"),
    ]
    history = LimitHistory("c", stored)
    assert history.changes({ALICE: {PRODUCER: 11.0, CONSUMER: 20.0}}, 9) == [
        row(9, 20.0, key=CONSUMER),
        row(9, None, "bob"),
    ]


def test_infinite_and_nan_limits_are_stored_once_as_unlimited() -> None:
    history = LimitHistory("c")
    described = {ALICE: {"request_percentage": math.inf, PRODUCER: math.nan}}
    rows = history.changes(described, 1)
    assert [row.value for row in decode_rows(RecordKind.LIMITS, encode_rows(RecordKind.LIMITS, rows))] == [
        UNLIMITED,
        UNLIMITED,
    ]
    assert history.changes(described, 2) == []


def test_entities_without_a_row_representation_are_skipped() -> None:
    described = {
        entity_of({"user": "alice", "group": "g"}): {PRODUCER: 1.0},
        entity_of({"user": ""}): {PRODUCER: 1.0},
        entity_of({"user": "<default>"}): {PRODUCER: 1.0},
    }
    assert LimitHistory("c").changes(described, 1) == []


def test_change_recorded_by_another_gateway_is_not_recorded_again() -> None:
    assert unrecorded([row(12, 2.0)], [row(10, 1.0), row(11, 2.0)]) == []
    assert unrecorded([row(12, None)], [row(11, None), row(10, 1.0)]) == []
    assert unrecorded([row(12, 3.0), row(12, 2.0, "bob")], [row(11, 2.0)]) == [row(12, 3.0), row(12, 2.0, "bob")]
    assert unrecorded([row(12, 1.0)], [row(10, 1.0), row(11, 2.0)]) == [row(12, 1.0)]  # it was changed back
    assert unrecorded([row(12, 1.0)], []) == [row(12, 1.0)]


def test_configurations_start_with_limits_in_force_and_follow_changes() -> None:
    history = [
        row(40, None),
        row(10, 1.0),
        row(20, 2.0),
        row(30, 3.0, "<default>"),
        row(30, 4.0, "<default>", key=CONSUMER),
    ]
    assert list(configurations(history, 25)) == [
        (25, {ALICE: {PRODUCER: 2.0}}),
        (30, {ALICE: {PRODUCER: 2.0}, ANYONE: {PRODUCER: 3.0, CONSUMER: 4.0}}),
        (40, {ANYONE: {PRODUCER: 3.0, CONSUMER: 4.0}}),
    ]
    assert list(configurations([], 7)) == [(7, {})]


def test_configurations_read_rows_of_the_collector() -> None:
    rules = {
        entity_of({"user": None, "client-id": "a"}): {PRODUCER: 1.0},
        entity_of({"client-id": None}): {CONSUMER: 2.0},
        entity_of({"ip": None}): {"connection_creation_rate": 3.0},
        entity_of({"ip": "10.0.0.1"}): {"connection_creation_rate": 4.0},
    }
    assert list(configurations(LimitHistory("c").changes(rules, 5), 5)) == [(5, rules)]


def test_change_affects_clients_that_share_the_new_quota() -> None:
    """The quota of a client-id is shared by all users without one of their own."""
    pairs = [(PRODUCER, user, client_id) for user in ("alice", "bob") for client_id in ("app", "job")]
    history = [row(0, 5.0), row(0, 5.0, "", client_id="app")]
    (joined,) = epochs(history, [QuotaAlteration(ALICE, {PRODUCER: None})], pairs, 100)
    affected = {f"{user}/{client_id}" for _, user, client_id in joined.affected()}
    assert affected == {"alice/app", "alice/job", "bob/app"}
    assert not joined.may_use_more((PRODUCER, "bob", "app"))
    assert joined.may_use_more((PRODUCER, "alice", "job"))
