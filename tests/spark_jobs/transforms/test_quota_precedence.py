"""Effective limits: the eight levels against a reference model, the history of limits, and shared buckets."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from spark_jobs.clickhouse.queries import CLIENTS_SCHEMA, LIMITS_SCHEMA
from spark_jobs.jobs.usage_windows import client_limits

pytestmark = pytest.mark.spark

_KEY = "producer_byte_rate"


class Rule(NamedTuple):
    user: str
    client_id: str
    valid_from_ms: int
    value: float | None


class Client(NamedTuple):
    user: str
    client_id: str
    until_ms: int = 1000


class Found(NamedTuple):
    limit: float
    matched_entity: str
    bucket: tuple[str, str]


def resolve(spark: SparkSession, rules: list[Rule], clients: list[Client]) -> dict[Client, Found]:
    return resolve_all(spark, [rules], clients)[0]


def resolve_all(spark: SparkSession, cases: list[list[Rule]], clients: list[Client]) -> list[dict[Client, Found]]:
    """Each case is a separate cluster, so that one Spark job resolves all of them."""
    history = [(str(case), _KEY, *rule) for case, rules in enumerate(cases) for rule in rules]
    names = {(client.user, client.client_id) for client in clients}
    asked = [(str(case), _KEY, *name) for case in range(len(cases)) for name in names]
    found: list[dict[Client, Found]] = [{} for _ in cases]
    limits = client_limits(
        spark.createDataFrame(asked, CLIENTS_SCHEMA), spark.createDataFrame(history, LIMITS_SCHEMA), -1, 2000
    )
    for row in limits.collect():
        for client in clients:
            inside = row["from_ms"] < client.until_ms <= row["to_ms"]
            if (row["user"], row["client_id"]) == (client.user, client.client_id) and inside and row["limit"] >= 0:
                bucket = (row["bucket_user"], row["bucket_client_id"])
                found[int(row["cluster"])][client] = Found(row["limit"], row["matched_entity"], bucket)
    return found


def states(spark: SparkSession, rules: list[Rule], client: Client, to_ms: int = 1000) -> list[tuple[Any, ...]]:
    """The intervals of one client: from, to, state, limit."""
    limits = client_limits(
        spark.createDataFrame([("0", _KEY, client.user, client.client_id)], CLIENTS_SCHEMA),
        spark.createDataFrame([("0", _KEY, *rule) for rule in rules], LIMITS_SCHEMA),
        *(0, to_ms),
    )
    return sorted((row["from_ms"], row["to_ms"], row["state"], row["limit"]) for row in limits.collect())


def test_quota_is_unknown_before_the_first_observation(spark: SparkSession) -> None:
    rules = [Rule("", "other", 100, 5.0), Rule("alice", "", 300, 1.0), Rule("alice", "", 600, None)]
    assert states(spark, rules, Client("alice", "app")) == [
        *((0, 300, "unknown", -1.0), (300, 600, "limited", 1.0), (600, 1000, "none", -1.0)),
    ]
    assert states(spark, rules, Client("bob", "app")) == [(0, 100, "unknown", -1.0), (100, 1000, "none", -1.0)]
    assert states(spark, [], Client("bob", "app")) == [(0, 1000, "unknown", -1.0)]


def test_unrelated_change_does_not_split_intervals(spark: SparkSession) -> None:
    rules = [Rule("alice", "", -5, 1.0), *(Rule("", "<default>", at, float(at)) for at in range(100, 900, 100))]
    assert states(spark, rules, Client("alice", "app")) == [(0, 1000, "limited", 1.0)]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float(2**63 - 1), -1.0])
def test_non_limiting_value_hides_lower_levels(spark: SparkSession, value: float) -> None:
    rules = [Rule("alice", "", -5, value), LEVELS[7]]
    assert states(spark, rules, Client("alice", "app")) == [(0, 1000, "none", -1.0)]


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


def test_each_level_overrides_all_lower_levels(spark: SparkSession) -> None:
    expected = [
        ("user=alice, client-id=app", ("alice", "app")),
        ("user=alice, client-id=<default>", ("alice", "app")),
        ("user=alice", ("alice", "")),
        ("user=<default>, client-id=app", ("alice", "app")),
        ("user=<default>, client-id=<default>", ("alice", "app")),
        ("user=<default>", ("alice", "")),
        ("client-id=app", ("", "app")),
        ("client-id=<default>", ("", "app")),
    ]
    client = Client("alice", "app")
    found = resolve_all(spark, [LEVELS[level:] for level in range(8)], [client])
    assert [each[client] for each in found] == [Found(level, *each) for level, each in enumerate(expected, start=1)]


def test_other_clients_fall_back_to_defaults(spark: SparkSession) -> None:
    clients = [Client("alice", "other"), Client("bob", "app"), Client("bob", "other")]
    found = resolve(spark, LEVELS, clients)
    assert [found[client].limit for client in clients] == [2.0, 4.0, 5.0]


def test_client_without_rule_has_no_row(spark: SparkSession) -> None:
    assert resolve(spark, LEVELS[:4], [Client("bob", "other")]) == {}


def test_empty_client_id_is_limited_by_user_rules_only(spark: SparkSession) -> None:
    """Kafka's quotaLimit looks up non-empty names only: a dimension without a name has no default."""
    assert resolve(spark, LEVELS, [Client("alice", "")])[Client("alice", "")].limit == 3.0
    assert resolve(spark, LEVELS[6:], [Client("alice", "")]) == {}


def test_client_named_default_is_not_the_default_entity(spark: SparkSession) -> None:
    client = Client("<default>", "<default>")
    assert resolve(spark, LEVELS, [client])[client] == Found(
        5.0, "user=<default>, client-id=<default>", ("<default>", "<default>")
    )


def test_value_at_the_end_of_the_window_applies(spark: SparkSession) -> None:
    rules = [Rule("alice", "", 100, 1.0), Rule("alice", "", 200, 2.0), Rule("alice", "", 300, None), LEVELS[7]]
    times = [100, 101, 200, 201, 300, 301]
    found = resolve(spark, rules, [Client("alice", "app", until_ms) for until_ms in times])
    assert [found[Client("alice", "app", until_ms)].limit for until_ms in times] == [8.0, 1.0, 1.0, 2.0, 2.0, 8.0]


def test_removed_rule_may_be_restored(spark: SparkSession) -> None:
    rules = [Rule("alice", "", 100, 1.0), Rule("alice", "", 200, None), Rule("alice", "", 300, 3.0)]
    found = resolve(spark, rules, [Client("alice", "app", until_ms) for until_ms in (150, 250, 350)])
    assert {client.until_ms: each.limit for client, each in found.items()} == {150: 1.0, 350: 3.0}


def test_rules_are_separate_per_quota_key_and_cluster(spark: SparkSession) -> None:
    rows = [("c", "consumer_byte_rate", "alice", "", 0, 1.0), ("d", _KEY, "alice", "", 0, 2.0)]
    history = spark.createDataFrame(rows, LIMITS_SCHEMA)
    asked = spark.createDataFrame([("c", _KEY, "alice", "app")], CLIENTS_SCHEMA)
    assert [row["state"] for row in client_limits(asked, history, 5, 10).collect()] == ["none"]


def model(rules: list[Rule], client: Client) -> Found | None:
    """Reference model of ClientQuotaManager.DefaultQuotaCallback."""
    in_force: dict[tuple[str, str], float | None] = {}
    for rule in sorted(rules, key=lambda rule: rule.valid_from_ms):
        if rule.valid_from_ms < client.until_ms:
            in_force[rule.user, rule.client_id] = rule.value
    forms = [
        (user, client_id)
        for user in (client.user, "<default>", "")
        for client_id in (client.client_id, "<default>", "")
        if user or client_id
    ]
    for user, client_id in forms:
        value = in_force.get((user, client_id))
        if value is not None:
            entity = [f"user={user}"] * bool(user) + [f"client-id={client_id}"] * bool(client_id)
            bucket = (client.user if user else "", client.client_id if client_id else "")
            return Found(value, ", ".join(entity), bucket)
    return None


_RULES = st.lists(
    st.builds(
        Rule,
        st.sampled_from(["", "<default>", "u1", "u2"]),
        st.sampled_from(["", "<default>", "c1", "c2"]),
        st.integers(0, 5),
        st.none() | st.floats(1, 1e9),
    ).filter(lambda rule: rule.user or rule.client_id),
    max_size=30,
    unique_by=lambda rule: (rule.user, rule.client_id, rule.valid_from_ms),
)


# Each example is a Spark job; shrinking would run hundreds of them.
@settings(max_examples=4, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(cases=st.lists(_RULES, min_size=20, max_size=20))
def test_random_rule_histories_match_the_model(spark: SparkSession, cases: list[list[Rule]]) -> None:
    clients = [
        Client(user, client_id, at)
        for user in ("u1", "u2", "u3")
        for client_id in ("c1", "c2", "c3")
        for at in range(7)
    ]
    expected = [{client: found for client in clients if (found := model(rules, client))} for rules in cases]
    assert resolve_all(spark, cases, clients) == expected
