"""Owners of clients: the first whose patterns fit, and faults of the file."""

from __future__ import annotations

import pytest

from quota_metrics.config.owners import UNOWNED, OwnersError, parse_owners

FILE = b"""
owners:
  - {team: first, user: "a*", client-id: "x?"}
  - {team: second, user: "a*", contact: c, page: p}
  - {team: brackets, client-id: "[1]"}
"""


@pytest.mark.parametrize(
    ("user", "client_id", "team"),
    [
        ("alice", "x1", "first"),
        ("alice", "x12", "second"),
        ("Alice", "x1", UNOWNED),
        ("", "[1]", "brackets"),
        ("", "1", UNOWNED),
        ("a\nb", "", "second"),
    ],
)
def test_first_owner_whose_patterns_fit_owns_the_client(user: str, client_id: str, team: str) -> None:
    assert parse_owners(FILE).owner(user, client_id).team == team


def test_empty_file_owns_nothing() -> None:
    assert parse_owners(b"").owner("u", "c").team == UNOWNED


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"owners: [{team: t}]", "neither a pattern"),
        (b"owners: [{team: unowned, user: u}]", "no team can be named"),
        (b"owners: [{team: t, users: u}]", "users"),
        (b"prices: {in_per_gb: -1}", "in_per_gb"),
        (b"owners: [", "no YAML"),
        (b"- a", "dictionary"),
    ],
)
def test_faults_are_named(content: bytes, fault: str) -> None:
    with pytest.raises(OwnersError, match=fault):
        parse_owners(content)
