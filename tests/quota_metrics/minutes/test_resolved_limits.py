"""The limits of clients whose rows do not say them, by the history of limits."""

import struct
from typing import Any, NamedTuple, TypeAlias

import pytest

from exporters.model import QuotaKey, QuotaLimit
from headroom.demo.jvm import Jvm
from quota_metrics.minutes.resolved_limits import resolved_limits

KEY = QuotaKey.PRODUCER_BYTE_RATE.value
Client: TypeAlias = tuple[str, str]


@pytest.mark.java
def test_null_client_id_is_parsed_as_empty(jvm: Jvm) -> None:
    """RequestHeader.parse maps a null client-id to '', so quota managers never receive null."""
    head = struct.pack(">hhih", 18, 0, 7, -1)  # ApiVersions version 0, with a null client-id
    buffer = jvm.classes.java.nio.ByteBuffer.wrap(head)
    assert jvm.classes.org.apache.kafka.common.requests.RequestHeader.parse(buffer).clientId() == ""


class Rule(NamedTuple):
    user: str
    client_id: str
    valid_from_ms: int
    value: float | None


class Limit(NamedTuple):
    limit: float
    matched_entity: str
    bucket: tuple[str, str]


ALICE = ("alice", "app")
# Most specific first; the value identifies the level.
LEVELS = [
    Rule("alice", "app", 0, 1.0),
    Rule("alice", "<default>", 0, 2.0),
    Rule("alice", "", 0, 3.0),
    Rule("<default>", "app", 0, 4.0),
    Rule("<default>", "<default>", 0, 5.0),
    Rule("<default>", "", 0, 6.0),
    Rule("", "app", 0, 7.0),
    Rule("", "<default>", 0, 8.0),
]


def history(rules: list[Rule]) -> list[QuotaLimit]:
    return [QuotaLimit("c", user, client_id, "", KEY, at_ms, value) for user, client_id, at_ms, value in rules]


def limits_in_force(rules: list[Rule], clients: list[Client]) -> dict[tuple[Client, int], Limit]:
    """The limits of clients, and of each until when it is asked for: at 0, 1, ... 9 ms."""
    limits = resolved_limits([("c", KEY, *client) for client in clients], history(rules), -1, 10)
    return {
        ((user, client_id), at_ms): Limit(one.limit, one.matched_entity, (one.bucket_user, one.bucket_client_id))
        for (_, _, user, client_id), intervals in limits.items()
        for one in intervals
        for at_ms in range(10)
        if one.from_ms < at_ms <= one.to_ms and one.limit >= 0
    }


def states(rules: list[Rule], client: Client = ALICE) -> list[tuple[Any, ...]]:
    """The intervals of one client: from, to, state, limit."""
    (intervals,) = resolved_limits([("c", KEY, *client)], history(rules), 0, 1000).values()
    return [interval[:4] for interval in intervals]


def test_quota_is_unknown_before_the_first_observation() -> None:
    rules = [Rule("", "other", 100, 5.0), Rule("alice", "", 300, 1.0), Rule("alice", "", 600, None)]
    assert states(rules) == [(0, 300, "unknown", -1.0), (300, 600, "limited", 1.0), (600, 1000, "none", -1.0)]
    assert states(rules, ("bob", "app")) == [(0, 100, "unknown", -1.0), (100, 1000, "none", -1.0)]
    assert states([], ("bob", "app")) == [(0, 1000, "unknown", -1.0)]


def test_unrelated_change_does_not_split_intervals() -> None:
    rules = [Rule("alice", "", -5, 1.0), *(Rule("", "<default>", at, float(at)) for at in range(100, 900, 100))]
    assert states(rules) == [(0, 1000, "limited", 1.0)]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float(2**63 - 1), -1.0])
def test_non_limiting_value_hides_lower_levels(value: float) -> None:
    assert states([Rule("alice", "", -5, value), LEVELS[7]]) == [(0, 1000, "none", -1.0)]


@pytest.mark.parametrize(
    ("level", "entity", "bucket"),
    [
        (1, "user=alice, client-id=app", ("alice", "app")),
        (2, "user=alice, client-id=<default>", ("alice", "app")),
        (3, "user=alice", ("alice", "")),
        (4, "user=<default>, client-id=app", ("alice", "app")),
        (5, "user=<default>, client-id=<default>", ("alice", "app")),
        (6, "user=<default>", ("alice", "")),
        (7, "client-id=app", ("", "app")),
        (8, "client-id=<default>", ("", "app")),
    ],
)
def test_each_level_overrides_all_lower_levels(level: int, entity: str, bucket: Client) -> None:
    assert limits_in_force(LEVELS[level - 1 :], [ALICE])[ALICE, 1] == Limit(level, entity, bucket)


def test_names_without_a_rule_fall_back_to_defaults() -> None:
    clients = [("alice", "other"), ("bob", "app"), ("bob", "other"), ("alice", ""), ("<default>", "<default>")]
    limits = limits_in_force(LEVELS, clients)
    # Kafka's quotaLimit looks up non-empty names only: a dimension without a name has no default.
    assert [limits[client, 1].limit for client in clients] == [2.0, 4.0, 5.0, 3.0, 5.0]
    assert limits_in_force(LEVELS[6:], [("alice", "")]) == limits_in_force(LEVELS[:4], [("bob", "other")]) == {}


def test_value_at_the_end_of_the_window_applies() -> None:
    rules = [Rule("alice", "", 1, 1.0), Rule("alice", "", 3, 2.0), Rule("alice", "", 5, None), LEVELS[7]]
    limits = limits_in_force(rules, [ALICE])
    assert [limits[ALICE, at_ms].limit for at_ms in range(1, 8)] == [8.0, 1.0, 1.0, 2.0, 2.0, 8.0, 8.0]


def test_removed_rule_may_be_restored() -> None:
    rules = [Rule("alice", "", 1, 1.0), Rule("alice", "", 3, None), Rule("alice", "", 5, 3.0)]
    limits = limits_in_force(rules, [ALICE])
    assert {at_ms: limit.limit for (_, at_ms), limit in limits.items()} == {
        2: 1.0, 3: 1.0, 6: 3.0, 7: 3.0, 8: 3.0, 9: 3.0,
    }  # fmt: skip


def test_rules_are_separate_per_quota_key_and_cluster() -> None:
    rows = [
        QuotaLimit("c", "alice", "", "", QuotaKey.CONSUMER_BYTE_RATE, 0, 1.0),
        QuotaLimit("d", "alice", "", "", KEY, 0, 2.0),
    ]
    (intervals,) = resolved_limits([("c", KEY, *ALICE)], rows, 5, 10).values()
    assert [interval.state for interval in intervals] == ["none"]
