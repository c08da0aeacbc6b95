"""headroom.quota_groups names the groups that quota_metrics.config.resolution finds, for random quotas and clients."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from exporters.clickhouse.store import Store
from exporters.model import DEFAULT_ENTITY
from quota_metrics.config.entities import CLIENT_ID, USER, desanitize, entity_of
from quota_metrics.config.resolution import Resolver
from tests.kit.clickhouse import RunningClickHouse, running_clickhouse

pytestmark = pytest.mark.clickhouse

KEYS = ("producer_byte_rate", "request_percentage")
CLUSTERS = 40
NAMES = ("a b", "ü", "x")

Row = tuple[str, str, str, str, str, str, float]  # cluster, key, group user and client-id, user, client-id, limit


@pytest.fixture(scope="module")
def clickhouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningClickHouse]:
    with running_clickhouse(tmp_path_factory.mktemp("clickhouse")) as running:
        yield running


def cases(draw: random.Random) -> Iterator[tuple[str, dict[tuple[str, str, str], float], list[tuple[str, str]]]]:
    """A cluster, limits by (user, client-id, key) in quota_limits' spelling, and its clients."""
    for number in range(CLUSTERS):
        entities = [(u, c) for u in ("", DEFAULT_ENTITY, *NAMES) for c in ("", DEFAULT_ENTITY, *NAMES) if u or c]
        chosen = draw.sample(entities, draw.randint(0, 6))
        if number % 4 == 0:  # quotas at one level only: the broker takes its short cut
            chosen = [entity for entity in chosen if entity[1] == ""]
        limits = {(*entity, key): draw.randint(1, 99) * 1.0 for entity in chosen for key in KEYS if draw.random() < 0.8}
        clients = [(u, c) for u in (*NAMES, "nobody") for c in ("", *NAMES, "other")]
        yield f"c{number}", limits, clients


def resolved(cluster: str, limits: dict[tuple[str, str, str], float], clients: list[tuple[str, str]]) -> set[Row]:
    rules: dict[tuple[tuple[str, str | None], ...], dict[str, float]] = {}
    for (user, client_id, key), value in limits.items():
        names = {kind: name for kind, name in ((USER, user), (CLIENT_ID, client_id)) if name}
        entity = entity_of({kind: None if name == DEFAULT_ENTITY else name for kind, name in names.items()})
        rules.setdefault(entity, {})[key] = value
    resolver = Resolver(rules)
    return {
        (cluster, key, desanitize(one.metric_tags[USER]), one.metric_tags[CLIENT_ID], user, client_id, one.value)
        for user, client_id in clients
        for key, one in resolver.resolve(user, client_id).items()
    }


def quoted(*values: object) -> str:
    return "(" + ", ".join(f"'{value}'" if isinstance(value, str) else str(value) for value in values) + ")"


def _groups(store: Store, limits: str, usage: str) -> list[Row]:
    store.query(
        f"INSERT INTO headroom.quota_limits (cluster, user, client_id, quota_key, valid_from, value) VALUES {limits}"
    )
    store.query(
        "INSERT INTO headroom.quota_usage (cluster, quota_key, ts, user, client_id, ip, broker_id, bytes, rate,"
        f" throttle_ms, throttled_requests, source) VALUES {usage}"
    )
    columns = "cluster, quota_key, group_user, group_client_id, user, client_id, `limit`"
    return [tuple(row) for row in store.query(f"SELECT {columns} FROM headroom.quota_groups")]


def test_groups_are_those_of_the_resolver(clickhouse: RunningClickHouse) -> None:
    # A quota on what nobody does makes no group.
    limits = [quoted("c1", "x", "", "consumer_byte_rate", "2026-01-01 00:00:00", 1.0)]
    usage = []
    expected: set[Row] = set()
    for cluster, current, clients in cases(random.Random(4)):
        for (user, client_id, key), value in current.items():
            limits.append(quoted(cluster, user, client_id, key, "2026-01-01 00:00:00", value + 1))
            limits.append(quoted(cluster, user, client_id, key, "2026-01-02 00:00:00", value))
        limits.append(f"('{cluster}', 'x', '', '{KEYS[0]}', '2025-01-01 00:00:00', 7)")  # long gone, or changed since
        if ("x", "", KEYS[0]) not in current:
            limits.append(f"('{cluster}', 'x', '', '{KEYS[0]}', '2025-01-02 00:00:00', NULL)")
        for user, client_id in clients:
            usage.append(f"('{cluster}', '{KEYS[0]}', now(), '{user}', '{client_id}', '', 1, 1, 1, 0, 0, 'gateway')")
        expected |= resolved(cluster, current, clients)
    usage.append(f"('c1', '{KEYS[0]}', now() - INTERVAL 2 DAY, 'x', 'yesterday', '', 1, 1, 1, 0, 0, 'gateway')")
    found = _groups(clickhouse.store, ", ".join(limits), ", ".join(usage))
    assert set(found) == expected
    assert len(found) == len(expected) > 400
