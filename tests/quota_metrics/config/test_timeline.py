"""Which quotas were in force when, and which clients a change affects."""

from __future__ import annotations

from exporters.model import QuotaLimit
from quota_metrics.config.entities import QuotaAlteration, entity_of
from quota_metrics.config.timeline import Epoch, LimitHistory, configurations, epochs

PRODUCER, CONSUMER = "producer_byte_rate", "consumer_byte_rate"
ALICE, ANYONE = entity_of({"user": "alice"}), entity_of({"user": None})
ALICE_APP = entity_of({"user": "alice", "client-id": "app"})


def row(user: str, ms: int, value: float | None, client_id: str = "", key: str = PRODUCER) -> QuotaLimit:
    return QuotaLimit("c", user, client_id, "", key, ms, value)


def test_configurations_start_with_limits_in_force_and_follow_changes() -> None:
    history = [
        row("alice", 40, None),
        row("alice", 10, 1.0),
        row("alice", 20, 2.0),
        row("<default>", 30, 3.0),
        row("<default>", 30, 4.0, key=CONSUMER),
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


def epoch(change: QuotaAlteration, *history: QuotaLimit) -> Epoch:
    pairs = [(PRODUCER, user, client_id) for user in ("alice", "bob") for client_id in ("app", "job")]
    (only,) = epochs(history, [change], pairs, 100)
    return only


def names(pairs: set[tuple[str, str, str]]) -> set[str]:
    return {f"{user}/{client_id}" for _, user, client_id in pairs}


def test_change_affects_clients_that_share_the_new_quota() -> None:
    """The quota of a client-id is shared by all users without one of their own."""
    joined = epoch(QuotaAlteration(ALICE, {PRODUCER: None}), row("alice", 0, 5.0), row("", 0, 5.0, client_id="app"))
    assert names(joined.affected()) == {"alice/app", "alice/job", "bob/app"}
    assert not joined.may_use_more((PRODUCER, "bob", "app"))
    assert joined.may_use_more((PRODUCER, "alice", "job"))
