"""The eight levels of precedence: Python, Spark and Kafka resolve equal quotas for random rules and clients."""

from __future__ import annotations

import random
import struct
from typing import Any, TypeAlias

import pytest
from pyspark.sql import SparkSession

from exporters.model import QuotaKey
from headroom.demo.kit.jvm import Jvm
from quota_metrics.config.entities import CLIENT_ID, USER, Entity, entity_of, sanitize
from quota_metrics.config.history import LimitHistory
from quota_metrics.config.resolution import Resolver
from quota_metrics.windows import UNLIMITED
from spark_jobs.clickhouse.queries import CLIENTS_SCHEMA, LIMITS_SCHEMA
from spark_jobs.jobs.usage_windows import client_limits
from tests.oracle.quotas_oracle import java_entity, quota_manager, their_quota

pytestmark = [pytest.mark.spark, pytest.mark.java]

KEY = QuotaKey.PRODUCER_BYTE_RATE.value
CASES = 60
# Names of rules. Rules named '' (which a controller refuses) or `<default>` have no rows in quota_limits.
RULE_NAMES = ["a", "a b", "%", "a%20b", "%3Cdefault%3E", "ü*~", "CN=x,O=y", "\u65e5\u672c"]
CLIENT_NAMES = [*RULE_NAMES, "other", "", "<default>"]

Rules: TypeAlias = dict[Entity, dict[str, float]]
Client: TypeAlias = tuple[str, str]
Quota: TypeAlias = tuple[float, str, str] | None  # limit, user and client-id of the metric tags


def drawn_rules(rng: random.Random) -> Rules:
    names: list[str | None] = [*rng.sample(RULE_NAMES, 2), None]
    kinds = [rng.choice([(USER,), (CLIENT_ID,), (USER, CLIENT_ID)]) for _ in range(rng.randrange(9))]
    entities = [entity_of({kind: rng.choice(names) for kind in each}) for each in kinds]
    return {entity: {KEY: float(rng.randrange(1, 10**6))} for entity in entities}


def drawn_clients(rng: random.Random, rules: Rules) -> list[Client]:
    """Pairs with and without a rule of their own, many with an empty name."""
    named = [name for entity in rules for _, name in entity if name is not None]
    names = [*named, "", rng.choice(CLIENT_NAMES), rng.choice(CLIENT_NAMES)]
    return sorted({(rng.choice(names), rng.choice(names)) for _ in range(8)} | {("", rng.choice(names))})


def by_kafka(jvm: Jvm, manager: Any, rules: Rules, clients: list[Client]) -> dict[Client, Quota]:
    optional, quota = jvm.classes.java.util.Optional, jvm.classes.org.apache.kafka.common.metrics.Quota
    for entity, values in rules.items():
        manager.updateQuota(*java_entity(jvm, entity), optional.of(quota(values[KEY], True)))
    found: dict[Client, Quota] = {}
    for client in clients:
        limit, tags = their_quota(jvm, manager, *client)
        found[client] = None if limit == UNLIMITED else (limit, tags[USER], tags[CLIENT_ID])
    for entity in rules:
        manager.updateQuota(*java_entity(jvm, entity), optional.empty())
    return found


def by_python(rules: Rules, clients: list[Client]) -> dict[Client, Quota]:
    resolver, found = Resolver(rules), dict[Client, Quota]()
    for client in clients:
        quota = resolver.resolve(*client).get(KEY)
        found[client] = None if quota is None else (quota.value, quota.metric_tags[USER], quota.metric_tags[CLIENT_ID])
    return found


def by_spark(spark: SparkSession, cases: list[tuple[Rules, list[Client]]]) -> list[dict[Client, Quota]]:
    """One Spark job for all cases: each case is a separate cluster."""
    changes = [row for number, (rules, _) in enumerate(cases) for row in LimitHistory(str(number)).changes(rules, 0)]
    history = [(row.cluster, row.quota_key, row.user, row.client_id, row.valid_from_ms, row.value) for row in changes]
    asked = [(str(number), KEY, *client) for number, (_, clients) in enumerate(cases) for client in clients]
    limits = client_limits(
        spark.createDataFrame(asked, CLIENTS_SCHEMA), spark.createDataFrame(history, LIMITS_SCHEMA), 0, 1000
    )
    found: list[dict[Client, Quota]] = [{} for _ in cases]
    for row in limits.collect():
        limited = (row["limit"], sanitize(row["bucket_user"]), row["bucket_client_id"])
        found[int(row["cluster"])][row["user"], row["client_id"]] = limited if row["state"] == "limited" else None
    return found


def test_python_spark_and_kafka_resolve_equal_quotas(spark: SparkSession, jvm: Jvm) -> None:
    rng = random.Random("precedence")
    rule_sets = [drawn_rules(rng) for _ in range(CASES)]
    cases = [(rules, drawn_clients(rng, rules)) for rules in rule_sets]
    manager = quota_manager(jvm)
    kafka = [by_kafka(jvm, manager, *case) for case in cases]
    manager.shutdown()
    assert [by_python(*case) for case in cases] == kafka
    assert by_spark(spark, cases) == kafka
    quotas = [(client, quota) for each in kafka for client, quota in each.items()]
    assert any(quota is None for _, quota in quotas)
    assert any(quota is not None and "" in client for client, quota in quotas)


def test_user_default_hides_client_id_quota_from_an_empty_user(spark: SparkSession, jvm: Jvm) -> None:
    rules = {entity_of({USER: None}): {KEY: 1.0}, entity_of({CLIENT_ID: "app"}): {KEY: 2.0}}
    clients = [("", "app"), ("alice", "app")]
    manager = quota_manager(jvm)
    expected = {("", "app"): None, ("alice", "app"): (1.0, "alice", "")}
    assert by_kafka(jvm, manager, rules, clients) == expected
    manager.shutdown()
    assert by_python(rules, clients) == expected
    assert by_spark(spark, [(rules, clients)]) == [expected]


def test_null_client_id_is_parsed_as_empty(jvm: Jvm) -> None:
    """RequestHeader.parse maps a null client-id to '', so quota managers never receive null."""
    head = struct.pack(">hhih", 18, 0, 7, -1)  # ApiVersions version 0, with a null client-id
    buffer = jvm.classes.java.nio.ByteBuffer.wrap(head)
    assert jvm.classes.org.apache.kafka.common.requests.RequestHeader.parse(buffer).clientId() == ""
