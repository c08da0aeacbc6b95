"""Which replication throttles are of no use."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quota_metrics.cluster.document import throttles_document
from quota_metrics.cluster.facts import REASSIGNMENTS, THROTTLED_REPLICAS, BrokerFacts, ClusterFacts, Unread
from quota_metrics.cluster.replication import (
    DYNAMIC_BROKER,
    DYNAMIC_DEFAULT,
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    LOG_DIRS_RATE,
    SetRate,
    removal_commands,
    replication_throttles,
)

STATIC = 4
IDLE = "no reassignment is running"
BOTH_RATES = {LEADER_RATE: "1000", FOLLOWER_RATE: "1000"}
BOTH_REPLICAS = {LEADER_REPLICAS: "0:1,0:2", FOLLOWER_REPLICAS: "0:3"}


def cluster(
    rates: Mapping[str, str],
    replicas: Mapping[str, str],
    reassigning: int | None,
    *,
    source: int = DYNAMIC_BROKER,
    moves: bool | None = None,
) -> ClusterFacts:
    broker = BrokerFacts(1, (4, 3), rates, sources=dict.fromkeys(rates, source), moves_log_dirs=moves)
    topics = {"orders": replicas} if replicas else {}
    return ClusterFacts("c", (broker,), throttled_replicas=topics, reassigning=reassigning)


def stale(facts: ClusterFacts) -> dict[str, tuple[str, ...]]:
    return {throttle.config: throttle.stale for throttle in facts.replication_throttles if throttle.stale}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (cluster(BOTH_RATES, BOTH_REPLICAS, 7), {}),
        (cluster(BOTH_RATES, BOTH_REPLICAS, None), {}),
        (cluster(BOTH_RATES, BOTH_REPLICAS, 0), dict.fromkeys((*BOTH_RATES, *BOTH_REPLICAS), (IDLE,))),
        (
            cluster({LEADER_RATE: "1000"}, BOTH_REPLICAS, 7),
            dict.fromkeys((LEADER_RATE, FOLLOWER_REPLICAS), (f"no broker has {FOLLOWER_RATE}",)),
        ),
        (
            cluster(BOTH_RATES, {FOLLOWER_REPLICAS: "*"}, 7),
            {
                LEADER_RATE: (f"no topic has {LEADER_REPLICAS}",),
                FOLLOWER_REPLICAS: (f"the topic has no {LEADER_REPLICAS}",),
            },
        ),
        (
            cluster(BOTH_RATES, {}, 0, source=DYNAMIC_DEFAULT),
            {
                FOLLOWER_RATE: (IDLE, f"no topic has {FOLLOWER_REPLICAS}"),
                LEADER_RATE: (IDLE, f"no topic has {LEADER_REPLICAS}"),
            },
        ),
        (cluster(BOTH_RATES, {}, 0, source=STATIC), {}),
        (cluster({LOG_DIRS_RATE: "1000"}, {}, 0, moves=True), {}),
        (cluster({LOG_DIRS_RATE: "1000"}, {}, 0), {}),
        (
            cluster({LOG_DIRS_RATE: "1000"}, {}, 7, moves=False),
            {LOG_DIRS_RATE: ("no replica moves between log directories",)},
        ),
        (cluster({LEADER_RATE: str(2**63 - 1)}, {}, 0), {}),
    ],
)
def test_stale_throttles(facts: ClusterFacts, expected: dict[str, tuple[str, ...]]) -> None:
    assert stale(facts) == expected


def test_what_cannot_be_read_makes_nothing_stale() -> None:
    unread = (Unread(THROTTLED_REPLICAS, "", ""), Unread(REASSIGNMENTS, "", ""), Unread("ACLs", "", ""))
    facts = replace(cluster(BOTH_RATES, {}, None), unread=unread)
    assert stale(facts) == {}
    assert [fact["what"] for fact in throttles_document(facts)["unread"]] == [THROTTLED_REPLICAS, REASSIGNMENTS]


def test_default_of_all_brokers_is_of_use_when_it_is_at_one() -> None:
    rates = [SetRate(n, LOG_DIRS_RATE, "1000", DYNAMIC_DEFAULT, moves) for n, moves in enumerate((False, True, False))]
    (throttle,) = replication_throttles(rates, {}, 0)
    assert (throttle.where, throttle.stale) == ("all brokers", ())


@given(st.text(min_size=1), st.dictionaries(st.sampled_from(sorted(BOTH_REPLICAS)), st.text(min_size=1), min_size=1))
def test_commands_are_quoted(topic: str, replicas: dict[str, str]) -> None:
    (command,) = removal_commands(replication_throttles([], {topic: replicas}, 0))
    words = shlex.split(command)
    assert words[words.index("--entity-name") + 1] == topic
    assert set(words[-1].split(",")) == set(replicas)
