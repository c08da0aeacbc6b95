"""What changed among the instances of a client, from its rows on a real server."""

from __future__ import annotations

from typing import Any

import pytest

from quota_metrics.levels.cause import TOLD_WINDOWS
from quota_metrics.levels.instances_query import CHANGES
from quota_metrics.levels.windows_query import SETTINGS
from tests.kit.clickhouse import RunningClickHouse, connected
from tests.kit.points import NOW_MS, Instance, store_fleet

pytestmark = pytest.mark.clickhouse

MINUTE = 60_000
ONSET = NOW_MS - NOW_MS % MINUTE  # 00:00
OLD, NEW = "3.9.1", "4.3.1"


def seen(first: float, last: float = 60.0, **more: Any) -> Instance:
    """From a minute of the onset until another."""
    return Instance(first * 60, last * 60, version=more.pop("version", OLD), **more)


FLEETS = {
    "rollout": [*[seen(-60, sent=10.0)] * 5, *[seen(-60, 0.1, ended=True)] * 5]
    + [seen(0.1, version=NEW, sent=90.0)] * 5,
    "network": [seen(-60, sent=10.0), seen(-0.5, address="10.9.9.7", sent=30.0)],
    "ipv6": [seen(-60), seen(0.2, address="2001:db8:1:2:3::4")],
    "more": [seen(-60)] * 2 + [seen(0.5)] * 3,
    "restart": [seen(-60, -0.4, ended=True), seen(-0.2)],
    "appears": [seen(0.1)],  # or its telemetry: nobody knows of others before
    "steady": [seen(-60), seen(-30)],
    # Two that end without a terminating push: with an interval of 10 s, and of five minutes.
    "killed": [seen(-60, -2, interval_s=10.0), seen(-60, -2, interval_s=300.0), seen(-60), seen(0.3, version=NEW)],
    "silent": [seen(-60, -20), seen(-60), seen(0.3, address="hostname")],
}


def stored(clickhouse: RunningClickHouse, cluster: str) -> None:
    for name, fleet in FLEETS.items():
        store_fleet(clickhouse.store, cluster, "u", name, fleet, ONSET)


def found(
    clickhouse: RunningClickHouse, cluster: str, from_ms: int, to_ms: int
) -> dict[tuple[str, int], dict[str, Any]]:
    asked = {"from_ms": from_ms, "to_ms": to_ms, "window_ms": MINUTE, "cluster": cluster, "telemetry": 1}
    with connected(clickhouse.writer) as client:
        rows = list(client.query(f"{CHANGES} {SETTINGS}", asked).named_results())
    return {(row["client_id"], row["window_start_ms"]): row for row in rows}


def test_changes_are_named_with_shares(clickhouse: RunningClickHouse) -> None:
    stored(clickhouse, "changes")
    rows = found(clickhouse, "changes", ONSET + MINUTE, ONSET + 2 * MINUTE)  # the onset was a window before
    told = {name: row["changes"][0] for (name, _), row in rows.items() if row["changes"][0]}
    assert told == {
        "rollout": f"5 of 10 instances run java {NEW} since 00:00 UTC, java {OLD} before",
        "network": "1 of 2 instances are in 10.9.9.0/24 since 23:59 UTC, none before",
        "ipv6": "1 of 2 instances are in 2001:db8:1:2::/64 since 00:00 UTC, none before",
        "more": "5 instances since 00:00 UTC, 2 before",
        "restart": "1 of 1 instances restarted at 23:59 UTC",
        "killed": f"1 of 3 instances run java {NEW} since 00:00 UTC, java {OLD} before",
        "silent": "2 instances since 00:00 UTC, 1 before",
    }
    first = {name: tuple(row[each][0] for each in ("kept", "growth", "sent_shares")) for (name, _), row in rows.items()}
    assert first["rollout"] == (0.5, 0.0, 0.9)
    assert first["network"] == (1.0, 1.0, 0.75)
    assert first["more"] == (1.0, 1.5, None)
    assert first["restart"] == (0.0, 0.0, None)


def test_each_window_tells_of_the_onsets_that_it_follows(clickhouse: RunningClickHouse) -> None:
    """An instance is new for onsets up to the window after its own, and whichever windows are asked for."""
    stored(clickhouse, "onsets")
    rows = found(clickhouse, "onsets", ONSET - 10 * MINUTE, ONSET + 10 * MINUTE)
    for at in (-1, 0, 3):
        start_ms = ONSET + at * MINUTE
        alone = found(clickhouse, "onsets", start_ms, start_ms + MINUTE)
        assert alone == {key: row for key, row in rows.items() if key[1] == start_ms}
    told = {
        at: [bool(text) for text in rows["rollout", ONSET + at * MINUTE]["changes"]]
        for at in range(1, TOLD_WINDOWS + 2)
    }
    # They began in minute 0, so before an onset in minute 2 or later.
    assert told == {at: [at - ago <= 1 for ago in range(1, TOLD_WINDOWS + 1)] for at in told}
