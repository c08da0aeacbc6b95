"""Windows of minutes on a real server: random rows against a reference implementation, and hand-made cases."""

import math
import random
from typing import Any

import pyarrow as pa
import pytest

from exporters.clickhouse.client import ClickHouse
from quota_metrics.minutes.usage_minutes import SampleTable, minutes
from quota_metrics.minutes.windows import ClientLimits, LimitInterval, window_rows, windows_of
from quota_metrics.verdict.window import Window
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.usage_rows import MINUTE, PRODUCE, START, changing, drawn, insert
from tests.kit.windows_reference import Expected, Row, windows

pytestmark = pytest.mark.clickhouse


def minute_rows(clickhouse: RunningClickHouse, cluster: str, from_ms: int, to_ms: int) -> pa.Table:
    span = {"from_ms": from_ms, "to_ms": to_ms, "source": "gateway", "cluster": cluster, "computed_ms": 1}
    return ClickHouse((clickhouse.writer,)).table(minutes(SampleTable.ALL), span)


def computed(
    clickhouse: RunningClickHouse, cluster: str, from_ms: int, to_ms: int, window_s: int = 60, **options: Any
) -> list[Window]:
    table = minute_rows(clickhouse, cluster, from_ms, to_ms)
    return list(window_rows(windows_of(table, window_s, to_ms, **options)))


def as_expected(rows: list[Window]) -> dict[Any, Expected]:
    return {
        (row.user, row.client_id, row.broker_id, row.window_start_ms): Expected(
            *(row.samples, row.usage, row.usage_p95, row.group_usage, row.group_p95, row.group_last, row.shared_with),
            int(row.muted_ms),
            row.limit,
            row.state,
            row.throttle_ms,
            row.usage_max,
            (row.greediest_user, row.greediest_client_id),
            row.greediest_usage,
            row.members_usage,
            row.matched_entity,
            row.rule_limit,
            row.decided_by,
            row.implied_limit,
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


@pytest.mark.parametrize("seed", range(4))
def test_windows_of_random_rows_match_the_reference(clickhouse: RunningClickHouse, seed: int) -> None:
    random_ = random.Random(seed)
    cluster, rows = f"random-{seed}", drawn(random_)
    insert(clickhouse.store, rows, cluster)
    insert(clickhouse.store, rows, cluster)  # duplicates, as after a crash
    from_ms, to_ms = START + random_.choice([0, 0, 23_000]), START + random_.choice([180_000, 150_000, 157_300])
    reported = as_expected(computed(clickhouse, cluster, from_ms, to_ms))
    assert differences(reported, windows(rows, from_ms, to_ms, MINUTE)) == []
    of_minutes: dict[Any, Expected] = {}
    for start_ms in range(from_ms, to_ms, MINUTE):  # one at a time, as `headroom serve` computes them
        of_minutes |= as_expected(computed(clickhouse, cluster, start_ms, min(start_ms + MINUTE, to_ms)))
    assert differences(of_minutes, reported) == []


@pytest.mark.parametrize("seed", range(12))
def test_windows_of_changing_limits_match_the_reference(clickhouse: RunningClickHouse, seed: int) -> None:
    """Limits and rules change within windows; gateways notice at different times, and some have not read quotas yet."""
    random_ = random.Random(seed)
    cluster, rows = f"changing-{seed}", changing(random_)
    insert(clickhouse.store, rows, cluster)
    to_ms = START + random_.choice([180_000, 163_000])
    reported = as_expected(computed(clickhouse, cluster, START, to_ms))
    assert differences(reported, windows(rows, START, to_ms, MINUTE)) == []


@pytest.mark.parametrize("seed", range(4))
def test_long_windows_match_the_reference(clickhouse: RunningClickHouse, seed: int) -> None:
    random_ = random.Random(seed)
    cluster = f"long-{seed}"
    rows = drawn(random_) if seed % 2 else changing(random_, minutes=5)
    insert(clickhouse.store, rows, cluster)
    from_ms = START - START % 300_000
    to_ms = from_ms + random_.choice([300_000, 240_000])
    reported = as_expected(computed(clickhouse, cluster, from_ms, to_ms, 300))
    assert differences(reported, windows(rows, from_ms, to_ms, 300_000)) == []


def test_throttle_time_mutes_the_windows_it_covers(clickhouse: RunningClickHouse) -> None:
    insert(clickhouse.store, [Row(START + 50_000, "u", "c", 1, 5.0, 90_000.0)], "long", bare=True)
    reported = {row.window_start_ms: row.muted_ms for row in computed(clickhouse, "long", START, START + 300_000)}
    assert reported == {START: 10_000, START + MINUTE: 60_000, START + 2 * MINUTE: 20_000}
    later = computed(clickhouse, "long", START + MINUTE, START + 300_000)
    assert {row.window_start_ms: row.muted_ms for row in later} == {
        START + MINUTE: 60_000,
        START + 2 * MINUTE: 20_000,
    }


def test_muted_time_is_the_maximum_over_gateways(clickhouse: RunningClickHouse) -> None:
    """Throttled several times a second, at two gateways; a throttle time beyond the muted time does not count as
    muted."""
    rows = [
        Row(START + at * 1000, "u", "c", 1, 80.0, 700.0, gateway, 1000, 100.0, 1, "u", "c", muted)
        for gateway, muted in (("g1", 300), ("g2", 900))
        for at in range(10)
    ]
    insert(clickhouse.store, rows, "several")
    reported = computed(clickhouse, "several", START, START + 2 * MINUTE)
    assert [(row.window_start_ms, row.muted_ms, row.throttle_ms) for row in reported] == [(START, 9000.0, 700.0)]


def test_a_stall_of_the_gateway_doubles_no_second(clickhouse: RunningClickHouse) -> None:
    seconds = [*range(21), 25, *range(26, 60)]
    rows = [Row(START + at * 1000, "u", "c", 1, 80.0, 0.0, "g", 5000 if at == 25 else 1000) for at in seconds]
    insert(clickhouse.store, rows, "stall")
    (row,) = computed(clickhouse, "stall", START, START + MINUTE)
    assert (row.usage, row.usage_p95, row.usage_max) == (80.0, 80.0, 80.0)


@pytest.mark.parametrize("step_s", [1, 10])
def test_rows_of_other_collectors_are_averaged_at_any_interval(clickhouse: RunningClickHouse, step_s: int) -> None:
    rows = [Row(START + at * 1000, "u", "c", 1, 80.0) for at in range(0, 60, step_s)]
    insert(clickhouse.store, rows, f"bare-{step_s}", bare=True)
    (row,) = computed(clickhouse, f"bare-{step_s}", START, START + MINUTE)
    assert (row.usage, row.usage_p95, row.group_p95, row.state) == (80.0, 80.0, 80.0, "unknown")


def test_limit_change_within_a_window_splits_it(clickhouse: RunningClickHouse) -> None:
    """A client at 0.8 of each of two limits has a utilisation of 0.8, not 7.4."""
    rows = [
        Row(START + at * 1000, "u", "c", 1, 80.0 if at < 55 else 8.0, 0.0, "g", 1000, limit, 1, "u", "c")
        for at, limit in ((at, 100.0 if at < 55 else 10.0) for at in range(60))
    ]
    insert(clickhouse.store, rows, "split")
    (row,) = computed(clickhouse, "split", START, START + MINUTE)
    assert row.limit
    assert (row.group_usage / row.limit, row.group_p95 / row.limit) == pytest.approx((0.8, 0.8))


@pytest.mark.parametrize("limit", [float(2**63 - 1), 1.1e15, math.inf])
def test_limit_that_never_throttles_counts_as_none(clickhouse: RunningClickHouse, limit: float) -> None:
    rows = [Row(START + at * 1000, "u", "c", 1, 80.0, 0.0, "g", 1000, limit, 1, "u", "c") for at in range(60)]
    insert(clickhouse.store, rows, f"unlimited-{limit}")
    reported = computed(clickhouse, f"unlimited-{limit}", START, START + MINUTE)
    assert [(row.state, row.limit, row.usage) for row in reported] == [("none", None, 80.0)]
    assert as_expected(reported) == windows(rows, START, START + MINUTE, MINUTE)


@pytest.mark.parametrize("limit", [math.nan, -math.inf, -1.0])
def test_row_with_invalid_limit_is_ignored(clickhouse: RunningClickHouse, limit: float) -> None:
    rows = [Row(START, "u", "c", 1, 80.0, 0.0, "g", 1000, limit, 1, "u", "c")]
    insert(clickhouse.store, rows, f"bad-limit-{limit}")
    assert computed(clickhouse, f"bad-limit-{limit}", START, START + MINUTE) == []
    assert windows(rows, START, START + MINUTE, MINUTE) == {}


def test_invalid_utf8_names_are_replaced(clickhouse: RunningClickHouse) -> None:
    ClickHouse((clickhouse.writer,)).command(
        "INSERT INTO quota_usage (cluster, quota_key, ts, user, client_id, broker_id, rate, source)"
        f" VALUES ('odd', 'producer_byte_rate', toDateTime64({START // 1000 + 1}, 3), 'u', unhex('ff41'), 1, 5,"
        " 'gateway')"
    )
    (row,) = computed(clickhouse, "odd", START, START + MINUTE)
    assert row.client_id == "\N{REPLACEMENT CHARACTER}A"


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
    (row,) = computed(clickhouse, name, START, START + MINUTE)
    assert row.limit
    assert (row.group_usage, row.group_usage / row.limit) == pytest.approx((1000 * share, share))


def test_clients_that_take_the_same_have_no_culprit(clickhouse: RunningClickHouse) -> None:
    rows = [
        Row(START + at * 1000, "u", client, 1, 80.0, 0.0, "g", 1000, 1000.0, 1, "u", "")
        for at in range(60)
        for client in ("a", "z")
    ]
    insert(clickhouse.store, rows, "equal")
    reported = computed(clickhouse, "equal", START, START + MINUTE)
    assert [(row.greediest_client_id, row.members_usage) for row in reported] == [("", 160.0), ("", 160.0)]


def _limited(from_s: int, to_s: int, limit: float, bucket_client_id: str) -> LimitInterval:
    span = (START + from_s * 1000, START + to_s * 1000)
    return LimitInterval(*span, "limited", limit, f"client-id={bucket_client_id}", "", bucket_client_id)


@pytest.mark.parametrize("window_s", [60, 300])
def test_limits_of_rows_that_know_none(clickhouse: RunningClickHouse, window_s: int) -> None:
    """Rows that know a limit have precedence, unless limits are assigned."""
    cluster = f"resolved-{window_s}"
    rows = [Row(START + at * 1000, "u", client, 1, 80.0, 0.0, "g", 1000) for at in range(60) for client in "abc"]
    rows += [Row(START + at * 1000, "u", "d", 1, 80.0, 0.0, "g", 1000, 50.0, 1, "u", "d") for at in range(60)]
    insert(clickhouse.store, rows, cluster)
    intervals = {
        (cluster, PRODUCE, "u", "a"): [_limited(-100, 30, 100.0, "a"), _limited(30, 400, 80.0, "a")],
        (cluster, PRODUCE, "u", "b"): [_limited(-100, 30, 100.0, "x"), _limited(30, 400, 400.0, "y")],
        (cluster, PRODUCE, "u", "d"): [_limited(-100, 400, 160.0, "d")],
        (cluster, PRODUCE, "u", "e"): [_limited(-100, 400, 160.0, "e")],
    }
    start = START - START % (window_s * 1000)
    end = start + window_s * 1000
    reported = computed(clickhouse, cluster, start, end, window_s, limits=ClientLimits(intervals))
    assert [(row.client_id, row.state, row.limit, row.bucket_client_id) for row in reported] == [
        *[("a", "limited", 80.0, "a"), ("b", "limited", 100.0, "x"), ("c", "unknown", None, "c")],
        ("d", "limited", 50.0, "d"),
    ]
    assigned = computed(clickhouse, cluster, start, end, window_s, limits=ClientLimits(intervals, assigned=True))
    assert {row.client_id: row.limit for row in assigned}["d"] == 160.0


@pytest.mark.parametrize("seed", range(6))
def test_resolved_limits_are_those_that_rows_would_know(clickhouse: RunningClickHouse, seed: int) -> None:
    """The reference knows rows only: their limits are taken away from them, and given as intervals."""
    random_ = random.Random(seed)
    rows = [row for row in changing(random_) if (row.gateway_id, row.interval_ms, row.broker_id) == ("g1", 1000, 1)]
    rows = [row._replace(limit_known=1) for row in rows]
    by_client: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        by_client.setdefault((row.user, row.client_id), []).append(row)
    cluster = f"taken-away-{seed}"
    intervals = {
        (cluster, PRODUCE, *client): [_interval(row) for row in several] for client, several in by_client.items()
    }
    bare = [row._replace(limit=None, limit_known=0, matched_entity="", bucket_user="") for row in rows]
    if bare:
        insert(clickhouse.store, bare, cluster)
        reported = as_expected(computed(clickhouse, cluster, START, START + 180_000, limits=ClientLimits(intervals)))
        assert differences(reported, windows(rows, START, START + 180_000, MINUTE)) == []


def _interval(row: Row) -> LimitInterval:
    span = (row.at_ms, row.at_ms + row.interval_ms)
    if row.limit is None or row.limit > 1e15:
        return LimitInterval(*span, "none", -1.0, row.matched_entity, row.user, row.client_id)
    return LimitInterval(*span, "limited", row.limit, row.matched_entity, row.bucket_user, row.bucket_client_id)


def test_many_scopes_in_one_table(clickhouse: RunningClickHouse) -> None:
    """Windows of several clusters, sources and minutes are those of each alone."""
    tables, alone = [], list[Window]()
    for seed in range(4):
        insert(clickhouse.store, changing(random.Random(seed)), f"scope-{seed}")
        for start_ms in (START, START + MINUTE):
            table = minute_rows(clickhouse, f"scope-{seed}", start_ms, start_ms + MINUTE)
            tables.append(table)
            alone += window_rows(windows_of(table, 60, START + 2 * MINUTE))
    together = list(window_rows(windows_of(pa.concat_tables(tables[::-1]), 60, START + 2 * MINUTE)))
    assert sorted(together, key=str) == sorted(alone, key=str)


def test_no_rows_make_no_windows(clickhouse: RunningClickHouse) -> None:
    assert computed(clickhouse, "nobody", START, START + MINUTE) == []
    assert computed(clickhouse, "nobody", START, START + 300_000, 300) == []
