"""The document of an application: nothing of it names a client of others."""

from __future__ import annotations

from typing import Any

import pytest

from headroom.web.own_view import COLUMNS, ClientScope, Scopes, document
from quota_metrics.config.owners import parse_owners

OWNERS = parse_owners(b"owners: [{team: payments, user: alice}, {team: search, user: bob}]")
PAYMENTS = ClientScope(team="payments")
START_MS = 1_795_515_120_000  # the window_start of `row`


def row(**other: Any) -> dict[str, Any]:
    shown: dict[str, Any] = dict.fromkeys(COLUMNS, "") | {
        "cluster": "prod", "quota_key": "producer_byte_rate", "user": "alice", "client_id": "app", "broker_id": 1,
        "limit": 100.0, "implied_limit": None, "group_usage": 90.0, "throttle_ms": 0.0, "muted_ms": 0.0,
        "level": "warn", "window_start": "2026-11-24 10:12:00", "own_reason": "", "own_cause": "",
    }  # fmt: skip
    return {**shown, "culprit_user": "", "culprit_client_id": "", "bucket_user": "*", "unheard_of": "bob", **other}


@pytest.mark.parametrize(
    ("scope", "user", "client_id", "named"),
    [
        (PAYMENTS, "alice", "other", True),
        (PAYMENTS, "bob", "secret", False),
        (PAYMENTS, "bob", ", x takes 5 % of it", False),
        (PAYMENTS, "carol", "", False),
        (ClientScope(client_id_prefix="app-"), "bob", "app-2", True),
        (ClientScope(client_id_prefix="app-"), "bob", "ap", False),
        (ClientScope(user="alice"), "alicia", "app", False),
    ],
)
def test_reason_names_no_client_of_others(scope: ClientScope, user: str, client_id: str, named: bool) -> None:
    reason = f"at 90.0 % of its limit; 2 other clients share this quota, {client_id} takes 91 % of it"
    own = "at 90.0 % of its limit; 2 other clients share this quota, another client takes 91 % of it"
    culprit = {"culprit_user": user, "culprit_client_id": client_id}
    rows = [row(reason=reason, own_reason=own, **culprit), row(reason="names nobody", **culprit)]
    clients = document(scope, rows, [], OWNERS, START_MS)["clients"]
    assert [client["reason"] for client in clients] == [reason if named else own, "names nobody"]


def test_cause_names_no_neighbour() -> None:
    rows = [
        row(cause="neighbour secret takes 8 B/s", own_cause="another client takes 8 B/s"),
        row(cause="limit lowered"),
    ]
    clients = document(PAYMENTS, rows, [], OWNERS, START_MS)["clients"]
    assert [client["cause"] for client in clients] == ["another client takes 8 B/s", "limit lowered"]


def test_document_has_known_columns_only_and_the_longest_wait() -> None:
    rows = [row(muted_ms=5.0, throttle_ms=700.0), row(group_usage=110.0, level="throttled", broker_id=2)]
    windows = [{"cluster": "prod", "broker_id": 2, "quota_window_ms": 31_000.0}]
    found = document(PAYMENTS, rows, windows, OWNERS, START_MS + 70_000)
    assert (found["scope"], found["level"]) == ({"team": "payments"}, "throttled")
    assert [client["retry_after_ms"] for client in found["clients"]] == [700, 3_100]
    assert (found["retry_after_ms"], found["next_in_ms"]) == (3_100, 5_000)
    assert {name for client in found["clients"] for name in client} == {
        *COLUMNS, "retry_after_ms", "headroom_bytes_per_s",
    }  # fmt: skip
    implied = document(PAYMENTS, [row(limit=None, implied_limit=80.0)], [], OWNERS, START_MS + 500_000)
    assert (implied["clients"][0]["retry_after_ms"], implied["next_in_ms"]) == (1_375, 10_000)
    nobody = document(PAYMENTS, [], [], OWNERS, START_MS)
    assert (nobody["clients"], nobody["level"], nobody["retry_after_ms"]) == ([], None, 0)


def test_scope_without_anything_sees_nobody() -> None:
    assert not ClientScope().sees("alice", "app", "payments")
    assert Scopes([("t" * 16, PAYMENTS)]).of("t" * 16) == PAYMENTS
    assert Scopes([("t" * 16, PAYMENTS)]).of("") is None
