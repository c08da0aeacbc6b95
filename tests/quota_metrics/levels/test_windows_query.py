"""The usage query on a real server: random rows against a reference implementation, and hand-made cases."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest

from quota_metrics.levels.windows_query import SETTINGS, Samples, WindowsQuery, store_minutes
from tests.kit.clickhouse import RunningClickHouse, connected
from tests.kit.usage_rows import MINUTE, PRODUCE, START, changing, drawn, insert
from tests.kit.windows_reference import Expected, Row, windows

pytestmark = pytest.mark.clickhouse

_numbers = itertools.count(1)


def query(
    clickhouse: RunningClickHouse, cluster: str, from_ms: int, to_ms: int, window_s: int = 60, *, stored: bool = False
) -> list[dict[str, Any]]:
    parameters = {
        "from_ms": from_ms,
        "to_ms": to_ms,
        "window_ms": window_s * 1000,
        "source": "gateway",
        "cluster": cluster,
        "quota_key": PRODUCE,
        "run": "none",
        "computed_ms": next(_numbers),
    }
    with connected(clickhouse.writer) as client:
        if stored:
            client.command(store_minutes(), parameters)
        samples = Samples.MINUTES if stored else Samples.USAGE
        statement = f"{WindowsQuery(window_s, samples).usage()} {SETTINGS}"
        return list(client.query(statement, parameters).named_results())


def found(rows: list[dict[str, Any]]) -> dict[Any, Expected]:
    return {
        (row["user"], row["client_id"], row["broker_id"], row["window_start_ms"]): Expected(
            *(row["samples"], row["usage"], row["usage_p95"], row["group_usage"], row["group_p95"], row["group_last"]),
            *(row["shared_with"], row["muted_ms"], row["limit"], row["state"], row["throttle_ms"], row["usage_max"]),
            *((row["greediest_user"], row["greediest_client_id"]), row["greediest_usage"], row["members_usage"]),
            *(row["matched_entity"], row["rule_limit"], row["decided_by"], row["implied_limit"]),
        )
        for row in rows
    }


def differences(reported: dict[Any, Expected], expected: dict[Any, Expected]) -> list[str]:
    """One line for each value that is not that of the reference."""
    lines = [f"{key}: only in one" for key in reported.keys() ^ expected.keys()]
    for key in sorted(reported.keys() & expected.keys()):
        for name, one, other in zip(Expected._fields, reported[key], expected[key], strict=True):
            if isinstance(one, float) and isinstance(other, float) and math.isclose(one, other, rel_tol=1e-9):
                continue
            if one != other:
                lines.append(f"{key}: {name} {one} instead of {other}")
    return lines


@pytest.mark.parametrize("seed", range(12))
def test_windows_of_random_rows_match_the_reference(clickhouse: RunningClickHouse, seed: int) -> None:
    random_ = random.Random(seed)
    cluster, rows = f"random-{seed}", drawn(random_)
    insert(clickhouse.store, rows, cluster)
    insert(clickhouse.store, rows, cluster)  # duplicates, as after a crash
    window_s, to_ms = random_.choice([60, 30, 90]), START + random_.choice([180_000, 150_000, 157_300])
    from_ms = START - START % (window_s * 1000)
    reported = found(query(clickhouse, cluster, from_ms, to_ms, window_s))
    assert differences(reported, windows(rows, from_ms, to_ms, window_s * 1000)) == []
    if window_s == 60:
        whole = START + 120_000
        assert found(query(clickhouse, cluster, from_ms, whole, stored=True)) == found(
            query(clickhouse, cluster, from_ms, whole)
        )


def test_throttle_time_mutes_the_windows_it_covers(clickhouse: RunningClickHouse) -> None:
    insert(clickhouse.store, [Row(START + 50_000, "u", "c", 1, 5.0, 90_000.0)], "long", bare=True)
    reported = {row["window_start_ms"]: row["muted_ms"] for row in query(clickhouse, "long", START, START + 300_000)}
    assert reported == {START: 10_000, START + MINUTE: 60_000, START + 2 * MINUTE: 20_000}
    later = {r["window_start_ms"]: r["muted_ms"] for r in query(clickhouse, "long", START + MINUTE, START + 300_000)}
    assert later == {START + MINUTE: 60_000, START + 2 * MINUTE: 20_000}


def test_muted_time_is_the_maximum_over_gateways(clickhouse: RunningClickHouse) -> None:
    """Throttled several times a second, at two gateways; a throttle time beyond the muted time does not count as
    muted."""
    rows = [
        Row(START + at * 1000, "u", "c", 1, 80.0, 700.0, gateway, 1000, 100.0, 1, "u", "c", muted)
        for gateway, muted in (("g1", 300), ("g2", 900))
        for at in range(10)
    ]
    insert(clickhouse.store, rows, "several")
    reported = query(clickhouse, "several", START, START + 2 * MINUTE)
    assert [(row["window_start_ms"], row["muted_ms"], row["throttle_ms"]) for row in reported] == [
        (START, 9000.0, 700.0)
    ]


@pytest.mark.parametrize("step_s", [1, 10])
def test_rows_of_other_collectors_are_averaged_at_any_interval(clickhouse: RunningClickHouse, step_s: int) -> None:
    rows = [Row(START + at * 1000, "u", "c", 1, 80.0) for at in range(0, 60, step_s)]
    insert(clickhouse.store, rows, f"bare-{step_s}", bare=True)
    (row,) = query(clickhouse, f"bare-{step_s}", START, START + MINUTE)
    assert (row["usage"], row["usage_p95"], row["group_p95"], row["state"]) == (80.0, 80.0, 80.0, "unknown")


def test_memory_of_long_windows_does_not_grow_by_the_square_of_their_length(clickhouse: RunningClickHouse) -> None:
    """A row a minute of 200 clients, in windows of five minutes: 2,400 arrays of 300 seconds, 6 MB of each kind."""
    cluster, minutes = "long-windows", 60
    rows = [
        Row(START + at * MINUTE, "u", f"c{client}", 1, 80.0, 0.0, "g", MINUTE, 100.0, 1, "u", f"c{client}")
        for client in range(200)
        for at in range(minutes)
    ]
    insert(clickhouse.store, rows, cluster)
    query(clickhouse, cluster, START, START + minutes * MINUTE, stored=True)
    bounds = {"from_ms": START, "to_ms": START + minutes * MINUTE, "window_ms": 300_000, "run": "none"}
    with connected(clickhouse.writer) as client:
        found = client.query(
            f"{WindowsQuery(300, Samples.MINUTES).usage()} {SETTINGS}, max_memory_usage = 500000000",
            {**bounds, "source": "gateway", "cluster": cluster, "quota_key": PRODUCE},
        ).result_rows
    assert len(found) == 200 * minutes // 5


def test_limit_change_within_a_window_splits_it(clickhouse: RunningClickHouse) -> None:
    """A client at 0.8 of each of two limits has a utilisation of 0.8, not 7.4."""
    rows = [
        Row(START + at * 1000, "u", "c", 1, 80.0 if at < 55 else 8.0, 0.0, "g", 1000, limit, 1, "u", "c")
        for at, limit in ((at, 100.0 if at < 55 else 10.0) for at in range(60))
    ]
    insert(clickhouse.store, rows, "split")
    (row,) = query(clickhouse, "split", START, START + MINUTE)
    assert row["group_usage"] / row["limit"] == pytest.approx(0.8)
    assert row["group_p95"] / row["limit"] == pytest.approx(0.8)


@pytest.mark.parametrize("limit", [float(2**63 - 1), 1.1e15, math.inf])
def test_limit_that_never_throttles_counts_as_none(clickhouse: RunningClickHouse, limit: float) -> None:
    rows = [Row(START + at * 1000, "u", "c", 1, 80.0, 0.0, "g", 1000, limit, 1, "u", "c") for at in range(60)]
    insert(clickhouse.store, rows, f"unlimited-{limit}")
    reported = query(clickhouse, f"unlimited-{limit}", START, START + MINUTE)
    assert [(row["state"], row["limit"], row["usage"]) for row in reported] == [("none", None, 80.0)]
    assert found(reported) == windows(rows, START, START + MINUTE, MINUTE)


@pytest.mark.parametrize("limit", [math.nan, -math.inf, -1.0])
def test_row_with_invalid_limit_is_ignored(clickhouse: RunningClickHouse, limit: float) -> None:
    rows = [Row(START, "u", "c", 1, 80.0, 0.0, "g", 1000, limit, 1, "u", "c")]
    insert(clickhouse.store, rows, f"bad-limit-{limit}")
    assert query(clickhouse, f"bad-limit-{limit}", START, START + MINUTE) == []
    assert windows(rows, START, START + MINUTE, MINUTE) == {}


def test_invalid_utf8_names_are_replaced(clickhouse: RunningClickHouse) -> None:
    with connected(clickhouse.writer) as client:
        client.command(
            "INSERT INTO headroom.quota_usage (cluster, quota_key, ts, user, client_id, broker_id, rate, source)"
            f" VALUES ('odd', 'producer_byte_rate', toDateTime64({START // 1000 + 1}, 3), 'u', unhex('ff41'), 1, 5,"
            " 'gateway')"
        )
    (row,) = query(clickhouse, "odd", START, START + MINUTE)
    assert row["client_id"] == "\N{REPLACEMENT CHARACTER}A"


@pytest.mark.parametrize("seed", range(40))
def test_windows_of_changing_limits_match_the_reference(clickhouse: RunningClickHouse, seed: int) -> None:
    """Limits and rules change within windows; gateways notice at different times, and some have not read quotas yet."""
    random_ = random.Random(seed)
    cluster, rows = f"changing-{seed}", changing(random_)
    insert(clickhouse.store, rows, cluster)
    window_s, to_ms = random_.choice([60, 60, 30]), START + random_.choice([180_000, 163_000])
    reported = found(query(clickhouse, cluster, START, to_ms, window_s))
    assert differences(reported, windows(rows, START, to_ms, window_s * 1000)) == []


def _seconds(gateway: str, rate: float, limit: Any, known: Any = lambda _: 1) -> list[Row]:
    """A row for each second of a minute; `limit` and `known` by second."""
    return [
        Row(
            *(START + at * 1000, "u", "c", 1, rate, 0.0, gateway, 1000),
            *((limit(at), 1, "u", "c") if known(at) else (None, 0, "", "")),
        )
        for at in range(60)
    ]


INTERLEAVED = {
    "one-gateway-has-not-read-quotas": (
        _seconds("g1", 600.0, None, lambda _: 0) + _seconds("g2", 370.0, lambda _: 1000.0),
        0.97,
    ),
    "quotas-known-from-second-20-on": (_seconds("g1", 970.0, lambda _: 1000.0, lambda at: at >= 20), 0.97),
    "limits-1-2-1": (_seconds("g1", 1000.0, lambda at: 2000.0 if 20 <= at < 40 else 1000.0), 1.0),
    "gateways-see-a-change-30-s-apart": (
        _seconds("g1", 600.0, lambda at: 1000.0 if at >= 15 else 2000.0)
        + _seconds("g2", 370.0, lambda at: 1000.0 if at >= 45 else 2000.0),
        0.97,
    ),
}


@pytest.mark.parametrize("name", INTERLEAVED)
def test_usage_stays_when_limits_interleave(clickhouse: RunningClickHouse, name: str) -> None:
    rows, share = INTERLEAVED[name]
    insert(clickhouse.store, rows, name)
    (row,) = query(clickhouse, name, START, START + MINUTE)
    assert (row["group_usage"], row["group_usage"] / row["limit"]) == pytest.approx((1000 * share, share))


def test_clients_that_take_the_same_have_no_culprit(clickhouse: RunningClickHouse) -> None:
    rows = [
        Row(START + at * 1000, "u", client, 1, 80.0, 0.0, "g", 1000, 1000.0, 1, "u", "")
        for at in range(60)
        for client in ("a", "z")
    ]
    insert(clickhouse.store, rows, "equal")
    reported = query(clickhouse, "equal", START, START + MINUTE)
    assert [(row["greediest_client_id"], row["members_usage"]) for row in reported] == [("", 160.0), ("", 160.0)]
