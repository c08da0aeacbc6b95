"""Slices of a part of the clients give the rows of the whole window: random rows on a real server."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from quota_metrics.levels.windows_query import SETTINGS, Samples, WindowsQuery, store_minutes
from spark_jobs.clickhouse.source import clickhouse_of, is_divided, slices_of_clients
from tests.kit.clickhouse import RunningClickHouse, connected
from tests.kit.usage_rows import MINUTE, PRODUCE, START, insert
from tests.kit.windows_reference import Row

pytestmark = pytest.mark.clickhouse

_NAMES = ["a", "b", "b'); --", "ü", "z z", "\\", ""]


def row(at_s: int, user: str, client_id: str, bucket: tuple[str, str] | None, random_: random.Random) -> Row:
    """`bucket`: its tags, or None for a row without its limit."""
    limit, known = (500.0, 1) if bucket else (None, 0)
    at_ms, muted_ms = START + at_s * 1000, random_.choice([0, 0, 0, 700])
    numbers = (random_.randint(1, 2), float(random_.randrange(1000)), 0.0)
    return Row(at_ms, user, client_id, *numbers, "g", 1000, limit, known, *(bucket or (user, client_id)), muted_ms)


def drawn(random_: random.Random, level: str) -> list[Row]:
    """Rows of clients whose quotas are of a client, of a user, of a client-id, or of each of these."""
    rows = []
    for user in random_.sample(_NAMES, 4):
        for client_id in random_.sample(_NAMES, 5):
            buckets = {"client": (user, client_id), "user": (user, ""), "client-id": ("", client_id), "none": None}
            chosen = random_.choice(list(buckets)) if level == "mixed" else level
            rows += [
                row(at_s, user, client_id, buckets[chosen], random_) for at_s in range(0, 120, random_.randint(1, 9))
            ]
    return rows


def slices_of(
    clickhouse: RunningClickHouse, cluster: str, rows: int, *, stored: bool, most: int
) -> list[dict[str, Any]]:
    times = {"from_ms": START, "to_ms": START + 2 * MINUTE, "window_ms": MINUTE, "weight": rows}
    one = {**times, "source": "gateway", "cluster": cluster, "quota_key": PRODUCE, "run": cluster}
    return list(slices_of_clients(clickhouse_of(clickhouse.url), [one], stored=stored, most=most))


def found(clickhouse: RunningClickHouse, slices: list[dict[str, Any]], *, stored: bool) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    with connected(clickhouse.writer) as client:
        for one in slices:
            samples = Samples.MINUTES if stored else Samples.USAGE
            query = f"{WindowsQuery(60, samples, is_divided(one)).usage()} {SETTINGS}"
            rows += [tuple(row) for row in client.query(query, one).result_rows]
    return sorted(rows, key=repr)


@pytest.mark.parametrize("level", ["client", "user", "client-id", "none", "mixed"])
@pytest.mark.parametrize("seed", range(3))
def test_slices_of_clients_together_give_the_rows_of_the_window(
    clickhouse: RunningClickHouse, seed: int, level: str
) -> None:
    random_ = random.Random(seed)
    cluster, rows = f"divided-{level}-{seed}", drawn(random_, level)
    insert(clickhouse.store, rows, cluster)
    with connected(clickhouse.writer) as client:
        whole = slices_of(clickhouse, cluster, len(rows), stored=False, most=len(rows))
        client.command(store_minutes(), {**whole[0], "computed_ms": seed})
    for stored in (False, True):
        whole = slices_of(clickhouse, cluster, len(rows), stored=stored, most=len(rows))
        slices = slices_of(clickhouse, cluster, len(rows), stored=stored, most=len(rows) // 7)
        assert [is_divided(one) for one in whole] == [False]
        assert len(slices) > 1 or level == "mixed"
        assert found(clickhouse, slices, stored=stored) == found(clickhouse, whole, stored=stored)


def limits(cluster: str, buckets: dict[tuple[str, str], tuple[str, str]]) -> pa.Table:
    """Limits that Spark resolved: client -> tags of its bucket."""
    rows = [
        {
            "run": cluster,
            "cluster": cluster,
            "quota_key": PRODUCE,
            "user": user,
            "client_id": client_id,
            "from_ms": START,
            "to_ms": START + 2 * MINUTE,
            "state": "limited",
            "limit": 500.0,
            "matched_entity": "",
            "bucket_user": bucket[0],
            "bucket_client_id": bucket[1],
        }
        for (user, client_id), bucket in buckets.items()
    ]
    return pa.Table.from_pylist(rows)


@pytest.mark.parametrize(("of", "number"), [("user", 3), ("client-id", 3), ("both", 1)])
def test_buckets_of_resolved_limits_stay_whole(clickhouse: RunningClickHouse, of: str, number: int) -> None:
    random_ = random.Random(7)
    cluster = f"resolved-{of}"
    clients = [(user, client_id) for user in ("u1", "u2", "u3") for client_id in "abc"]
    rows = [row(at_s, *client, None, random_) for client in clients for at_s in range(120)]
    insert(clickhouse.store, rows, cluster)
    buckets = {client: {"user": (client[0], ""), "client-id": ("", client[1])} for client in clients}
    resolved = {
        client: by.get(of) or by["user" if client[0] == "u1" else "client-id"] for client, by in buckets.items()
    }
    clickhouse.store.insert("quota_client_limits", limits(cluster, resolved), token=cluster)
    whole = slices_of(clickhouse, cluster, len(rows), stored=False, most=len(rows))
    slices = slices_of(clickhouse, cluster, len(rows), stored=False, most=len(rows) // 6)
    assert len(slices) == number
    assert found(clickhouse, slices, stored=False) == found(clickhouse, whole, stored=False)


def test_minutes_are_stored_by_clients_whatever_they_share(clickhouse: RunningClickHouse) -> None:
    cluster, rows = "stored-apart", drawn(random.Random(3), "client-id")
    insert(clickhouse.store, rows, cluster)
    (whole,) = slices_of(clickhouse, cluster, len(rows), stored=False, most=len(rows))
    apart = list(
        slices_of_clients(
            clickhouse_of(clickhouse.url), [whole], stored=False, whole_buckets=False, most=len(rows) // 5
        )
    )
    assert len(apart) > 1
    with connected(clickhouse.writer) as client:
        for one in apart:
            client.command(store_minutes(divided=True), {**one, "computed_ms": 1})
    assert found(clickhouse, [whole], stored=True) == found(clickhouse, [whole], stored=False)
