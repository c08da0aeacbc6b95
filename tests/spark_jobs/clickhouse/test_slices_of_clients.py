"""Slices of a part of the clients give the windows of all of them: random rows on a real server."""

import random
from typing import Any

import pytest

from quota_metrics.minutes.rows import ClientLimits, LimitInterval
from quota_metrics.minutes.usage_minutes import complete
from quota_metrics.minutes.windows import window_rows, windows_of
from quota_metrics.verdict.window import Window
from spark_jobs.clickhouse.slices import SLICE_OF_MINUTES, slices_of_clients
from spark_jobs.clickhouse.source import clickhouse_of
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.usage_rows import MINUTE, PRODUCE, START, insert
from tests.kit.windows_reference import Row

pytestmark = pytest.mark.clickhouse

_NAMES = ["a", "b", "b'); --", "ü", "z z", "\\", ""]
_WEIGHT = 1000
_NO_LIMITS = ClientLimits({})


def row(at_s: int, user: str, client_id: str, bucket: tuple[str, str] | None, random_: random.Random) -> Row:
    """`bucket`: its tags, or None for a row without its limit."""
    limit, limit_known = (500.0, 1) if bucket else (None, 0)
    at_ms, muted_ms = START + at_s * 1000, random_.choice([0, 0, 0, 700])
    numbers = (random_.randint(1, 2), float(random_.randrange(1000)), 0.0)
    return Row(
        at_ms, user, client_id, *numbers, "g", 1000, limit, limit_known, *(bucket or (user, client_id)), muted_ms
    )


def slices_of(
    clickhouse: RunningClickHouse, cluster: str, number: int, limits: ClientLimits = _NO_LIMITS
) -> list[dict[str, Any]]:
    times = {"from_ms": START, "to_ms": START + 2 * MINUTE, "window_ms": MINUTE, "weight": _WEIGHT}
    whole_slice = {**times, "source": "gateway", "cluster": cluster, "quota_key": PRODUCE}
    return list(slices_of_clients(clickhouse_of(clickhouse.url), [whole_slice], limits, most=_WEIGHT // number))


def windows(
    clickhouse: RunningClickHouse, slices: list[dict[str, Any]], limits: ClientLimits = _NO_LIMITS
) -> list[Window]:
    server = clickhouse_of(clickhouse.url)
    tables = [server.table(SLICE_OF_MINUTES, part) for part in slices]
    rows = [window for table in tables for window in window_rows(windows_of(table, 60, START + 2 * MINUTE, limits))]
    return sorted(rows, key=repr)


@pytest.mark.parametrize("level", ["client", "user", "client-id", "none", "mixed"])
@pytest.mark.parametrize("seed", range(3))
def test_slices_of_clients_together_give_the_windows_of_all(
    clickhouse: RunningClickHouse, seed: int, level: str
) -> None:
    random_ = random.Random(seed)
    cluster, rows = f"divided-{level}-{seed}", []
    for user in random_.sample(_NAMES, 4):
        for client_id in random_.sample(_NAMES, 5):
            buckets = {"client": (user, client_id), "user": (user, ""), "client-id": ("", client_id), "none": None}
            chosen = random_.choice(list(buckets)) if level == "mixed" else level
            rows += [
                row(at_s, user, client_id, buckets[chosen], random_) for at_s in range(0, 120, random_.randint(1, 9))
            ]
    insert(clickhouse.store, rows, cluster)
    complete(clickhouse_of(clickhouse.url), "gateway", START, START + 2 * MINUTE)
    whole, slices = slices_of(clickhouse, cluster, 1), slices_of(clickhouse, cluster, 7)
    assert len(slices) > 1 or level == "mixed"
    assert windows(clickhouse, slices) == windows(clickhouse, whole)
    assert {(window.user, window.client_id) for window in windows(clickhouse, whole)} == {
        (window.user, window.client_id) for window in rows
    }


@pytest.mark.parametrize(("of", "number"), [("user", 3), ("client-id", 3), ("both", 1)])
def test_buckets_of_resolved_limits_stay_whole(clickhouse: RunningClickHouse, of: str, number: int) -> None:
    random_ = random.Random(7)
    cluster = f"resolved-{of}"
    clients = [(user, client_id) for user in ("u1", "u2", "u3") for client_id in "abc"]
    rows = [row(at_s, *client, None, random_) for client in clients for at_s in range(120)]
    insert(clickhouse.store, rows, cluster)
    complete(clickhouse_of(clickhouse.url), "gateway", START, START + 2 * MINUTE)
    buckets = {client: {"user": (client[0], ""), "client-id": ("", client[1])} for client in clients}
    intervals = {
        (cluster, PRODUCE, *client): [
            LimitInterval(
                *(START, START + 2 * MINUTE, "limited", 500.0, ""),
                *(by.get(of) or by["user" if client[0] == "u1" else "client-id"]),
            )
        ]
        for client, by in buckets.items()
    }
    limits = ClientLimits(intervals)
    slices = slices_of(clickhouse, cluster, 6, limits)
    assert len(slices) == number
    assert windows(clickhouse, slices, limits) == windows(clickhouse, slices_of(clickhouse, cluster, 1, limits), limits)
