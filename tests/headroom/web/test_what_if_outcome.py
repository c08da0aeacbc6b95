"""Verdict and reason of the what-if form for one client, and how much of a recording is examined."""

from __future__ import annotations

import pytest

from headroom.web.what_if import _MAX_ROWS, _within_budget
from headroom.web.what_if_outcome import Outcome, documents
from quota_metrics.config.entities import CLIENT_ID, USER, Alteration, Entity
from quota_metrics.config.timeline import Epoch, Pair

KEY = "producer_byte_rate"
ALICE: Entity = ((USER, "alice"),)
ORDERS: Pair = (KEY, "alice", "orders")
BILLS: Pair = (KEY, "alice", "bills")
RULES: dict[Entity, dict[str, float]] = {ALICE: {KEY: 1000.0}}
PER_CLIENT: Entity = ((USER, "alice"), (CLIENT_ID, None))


def outcome(change: Alteration, *, muted_s: float = 0, over_s: float = 0, peak: float = 0) -> Outcome:
    seen = {"broker_id": 1, "muted_s": muted_s}
    return Outcome(Epoch(0, RULES, change, [ORDERS, BILLS]), ORDERS, seen, over_s, peak)


@pytest.mark.parametrize(
    ("value", "muted_s", "over_s", "verdict", "reason"),
    [
        (500.0, 0, 12, "newly throttled", "12 of 60 s above 500 bytes/s of {user=alice} that it shares with 1 more"),
        (500.0, 9, 12, "still throttled", "12 of 60 s above"),
        (500.0, 9, 0, "still throttled", "it was throttled, so it wanted more than was recorded"),
        (500.0, 0, 0, "unchanged", "never above 70.0 % of 500 bytes/s"),
        (
            2000.0,
            9,
            0,
            "freed",
            "never above 70.0 % of 2000 bytes/s of {user=alice} that it shares with 1 more; it was",
        ),
        (2000.0, 9, 5, "still throttled", "5 of 60 s above 2000 bytes/s"),
        (None, 9, 0, "freed", "no quota applies"),
        (None, 0, 0, "unchanged", "no quota applies"),
    ],
)
def test_verdict_follows_from_recorded_throttling_and_rates(
    value: float | None, muted_s: float, over_s: float, verdict: str, reason: str
) -> None:
    peak = 1.5 if over_s else 0.7
    found = outcome(Alteration(ALICE, {KEY: value}), muted_s=muted_s, over_s=over_s, peak=peak)
    assert found.verdict == verdict
    assert found.reason(60).startswith(reason)


def test_own_quota_frees_a_client_from_those_that_shared_it() -> None:
    found = outcome(Alteration(PER_CLIENT, {KEY: 1000.0}), muted_s=9, peak=0.7)
    assert (found.verdict, found.shared_with) == ("freed", 0)
    document = found.document(60)
    assert document["before"] == {"limit": 1000.0, "entity": {USER: "alice"}, "throttled_s": 9}
    assert document["after"]["entity"] == {USER: "alice", CLIENT_ID: None}


def test_newly_throttled_clients_come_first() -> None:
    stricter = Alteration(ALICE, {KEY: 500.0})
    outcomes = [
        outcome(stricter, muted_s=2),
        outcome(stricter, over_s=1),
        outcome(stricter),
        outcome(stricter, over_s=3),
    ]
    shown, counts = documents(outcomes, 60, 2)
    assert [(one["verdict"], one["after"]["over_s"]) for one in shown] == [
        ("newly throttled", 3),
        ("newly throttled", 1),
    ]
    assert counts == {"newly throttled": 2, "still throttled": 1, "unchanged": 1}


def test_clients_are_examined_until_their_rows_are_too_many() -> None:
    half = {"samples": _MAX_ROWS / 2}
    assert _within_budget([half, half, half]) == [half, half]
    assert len(_within_budget([{"samples": _MAX_ROWS * 2.0}, half])) == 1
    assert _within_budget([]) == []
