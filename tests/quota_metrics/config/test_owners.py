"""Owners of clients: the first whose patterns fit, and faults of the file."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from exporters.model import UNOWNED
from quota_metrics.config.owners import OwnersError, parse_owners

FILE = b"""
owners:
  - {team: first, user: "a*", client-id: "x?"}
  - {team: second, user: "a*", contact: c, page: p}
  - {team: brackets, client-id: "[1]"}
"""


def test_empty_file_owns_nothing() -> None:
    assert parse_owners(b"").owner("u", "c").team == UNOWNED
    assert parse_owners(b"").topic_owner("t").team == UNOWNED


TOPICS = b"""
owners:
  - {team: audit, topic: "payments.audit"}
  - {team: payments, user: "User:payments-*", topic: "payments.*", contact: c}
  - {team: rest, topic: "*.t?"}
  - {team: clients, client-id: "*"}
"""


def test_patterns_of_topics_own_no_clients() -> None:
    owners = parse_owners(TOPICS)
    assert [owners.owner(*names).team for names in (("payments-1", "x"), ("u", "payments.audit"))] == [
        "payments", "clients",
    ]  # fmt: skip
    assert parse_owners(TOPICS).topic_owner("payments.x").contact == "c"
    assert parse_owners(TOPICS + b"  - {team: t, topic: x}").checksum == owners.checksum


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"owners: [{team: t}]", "no pattern of user, client-id or topic"),
        (b"owners: [{team: t, topic: ''}]", "topic"),
        (b"capacity: {in_bytes_per_s: -1}", "in_bytes_per_s"),
        (b"owners: [{team: unowned, user: u}]", "no team can be named"),
        (b"owners: [{team: t, users: u}]", "users"),
        (b"prices: {in_per_gb: -1}", "in_per_gb"),
        (b"owners: [", "no YAML"),
        (b"owners: [{team: t, user: a, user: b}]", "user a second time"),
        (b"owners: [{team: 2024-02-30, user: a}]", "no YAML"),
        (b"- a", "dictionary"),
    ],
)
def test_faults_are_named(content: bytes, fault: str) -> None:
    with pytest.raises(OwnersError, match=fault) as raised:
        parse_owners(content)
    assert "\n" not in str(raised.value)


def fits(pattern: str, name: str) -> bool:
    """`*` is any text and `?` any character: one set of reached positions in the pattern for each character."""
    at = {0}
    for char in (*name, None):
        while stars := {place + 1 for place in at if pattern[place : place + 1] == "*"} - at:
            at |= stars
        if char is not None:
            at = {p + (pattern[p] != "*") for p in at if pattern[p : p + 1] and pattern[p] in ("*", "?", char)}
    return len(pattern) in at


_names = st.text("abA\n[*", max_size=5)
_patterns = st.none() | st.text("abA\n[*?", min_size=1, max_size=5)


@given(st.lists(st.tuples(_patterns, _patterns, _patterns).filter(any), max_size=8), _names, _names, _names)
def test_owner_is_the_first_that_fits_by_trying_all(
    patterns: list[tuple[str | None, str | None, str | None]], user: str, client_id: str, topic: str
) -> None:
    kinds = ("user", "client-id", "topic")
    entries = [
        {"team": f"t{number}"} | {kind: text for kind, text in zip(kinds, of_entry, strict=True) if text}
        for number, of_entry in enumerate(patterns)
    ]
    of_client = [
        f"t{number}"
        for number, (of_user, of_id, _) in enumerate(patterns)
        if (of_user or of_id) and fits(of_user or "*", user) and fits(of_id or "*", client_id)
    ]
    of_topic = [f"t{number}" for number, (*_, pattern) in enumerate(patterns) if pattern and fits(pattern, topic)]
    owners = parse_owners(yaml.safe_dump({"owners": entries}).encode())
    assert owners.owner(user, client_id).team == [*of_client, UNOWNED][0]
    assert owners.topic_owner(topic).team == [*of_topic, UNOWNED][0]


def test_checksum_is_that_of_teams_and_patterns() -> None:
    first, same, other = (
        parse_owners(content)
        for content in (FILE, FILE + b"prices: {in_per_gb: 1}", FILE.replace(b"team: first", b"team: f"))
    )
    assert first.checksum == same.checksum != other.checksum


def test_hostile_name_takes_no_time_that_grows_with_the_stars() -> None:
    """A backtracking match of this would not end."""
    owners = parse_owners(yaml.safe_dump({"owners": [{"team": "t", "user": "*a" * 200 + "b"}]}).encode())
    assert owners.owner("a" * 32_767, "").team == UNOWNED
