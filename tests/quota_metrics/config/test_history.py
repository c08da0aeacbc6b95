"""Which rows a change of the quota configuration creates."""

from __future__ import annotations

import math

from exporters.model import QuotaLimit, RecordKind
from exporters.spool.records import decode_rows, encode_rows
from quota_metrics.config.entities import entity_of
from quota_metrics.config.timeline import LimitHistory, unrecorded
from quota_metrics.windows import UNLIMITED

ALICE = entity_of({"user": "alice"})
ALICE_ANY_CLIENT = entity_of({"client-id": None, "user": "alice"})
PRODUCER, CONSUMER = "producer_byte_rate", "consumer_byte_rate"


def limit(user: str, client_id: str, key: str, ms: int, value: float | None) -> QuotaLimit:
    return QuotaLimit("c", user, client_id, "", key, ms, value)


def test_first_read_records_all_limits_and_the_second_none() -> None:
    history = LimitHistory("c")
    described = {ALICE: {PRODUCER: 10.0, CONSUMER: 20.0}, ALICE_ANY_CLIENT: {PRODUCER: 5.0}}
    assert history.changes(described, 1) == [
        limit("alice", "", PRODUCER, 1, 10.0),
        limit("alice", "", CONSUMER, 1, 20.0),
        limit("alice", "<default>", PRODUCER, 1, 5.0),
    ]
    assert history.changes(described, 2) == []


def test_changed_and_removed_values_are_recorded() -> None:
    history = LimitHistory("c")
    history.changes({ALICE: {PRODUCER: 10.0, CONSUMER: 20.0}}, 1)
    assert history.changes({ALICE: {PRODUCER: 11.0}}, 2) == [
        limit("alice", "", PRODUCER, 2, 11.0),
        limit("alice", "", CONSUMER, 2, None),
    ]
    assert history.changes({}, 3) == [limit("alice", "", PRODUCER, 3, None)]
    assert history.changes({ALICE: {PRODUCER: 11.0}}, 4) == [limit("alice", "", PRODUCER, 4, 11.0)]


def test_stored_limits_are_not_recorded_again() -> None:
    stored = [
        limit("alice", "", CONSUMER, 5, None),
        limit("alice", "", PRODUCER, 1, 10.0),
        limit("alice", "", PRODUCER, 4, 11.0),
        limit("alice", "", CONSUMER, 2, 20.0),
        limit("bob", "", PRODUCER, 1, 1.0),
    ]
    history = LimitHistory("c", stored)
    assert history.changes({ALICE: {PRODUCER: 11.0, CONSUMER: 20.0}}, 9) == [
        limit("alice", "", CONSUMER, 9, 20.0),
        limit("bob", "", PRODUCER, 9, None),
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
    def row(ms: int, value: float | None, user: str = "alice") -> QuotaLimit:
        return limit(user, "", PRODUCER, ms, value)

    assert unrecorded([row(12, 2.0)], [row(10, 1.0), row(11, 2.0)]) == []
    assert unrecorded([row(12, None)], [row(11, None), row(10, 1.0)]) == []
    assert unrecorded([row(12, 3.0), row(12, 2.0, "bob")], [row(11, 2.0)]) == [row(12, 3.0), row(12, 2.0, "bob")]
    assert unrecorded([row(12, 1.0)], [row(10, 1.0), row(11, 2.0)]) == [row(12, 1.0)]  # it was changed back
    assert unrecorded([row(12, 1.0)], []) == [row(12, 1.0)]
