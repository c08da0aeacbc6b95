"""Draws fleets, whose limits and rules change, with gateways that notice later or not yet, gaps and late rows, and
compares every path of the product with the reference: windows from usage_1m, the live minutes, the job and the job with
--stream; before and after late rows, and with each row stored twice."""

import math
import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from quota_metrics.minutes.usage_minutes import complete
from quota_metrics.minutes.windows import windows_of
from spark_jobs.jobs import quota_headroom
from spark_jobs.options import HeadroomOptions
from spark_jobs.time_range import TimeRange
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.levels import compute_levels, now_ms
from tests.kit.levels_reference import ClientVerdict, client_verdicts
from tests.kit.usage_rows import MINUTE, PRODUCE, START, changing, insert, stored_minute
from tests.kit.windows_reference import Expected, Key, Row, windows

MINUTES = 3
_NOISE = 1e-12  # of sums of rates
_SUMS = ("usage", "usage_p95", "group_usage", "group_p95", "usage_max", "greediest_usage")
Verdicts = dict[tuple[str, str, int], ClientVerdict]  # by user, client-id and window
_OF_A_CLUSTER = 500
_REASON = ClientVerdict._fields.index("reason")


Difference = tuple[str, tuple[Any, ...], str]  # path, what, and how it is not that of the reference


class Fleet(NamedTuple):
    """The rows that arrive in time and those that arrive late, of one quota key, from `start_ms` on."""

    start_ms: int
    early: list[Row]
    late: list[Row]

    def windows(self) -> dict[Key, Expected]:
        """What the reference finds."""
        return windows([*self.early, *self.late], self.start_ms, self.start_ms + MINUTES * MINUTE, MINUTE)

    def reasons(self) -> dict[tuple[str, str, int], set[str]]:
        """Of each verdict the right texts: where a number lies between two roundings, the order of a sum decides."""
        found: dict[tuple[str, str, int], set[str]] = {}
        of_rows = self.windows()
        for factor in (1.0, 1 - _NOISE, 1 + _NOISE):
            scaled = {
                key: window._replace(**{name: factor * getattr(window, name) for name in _SUMS})
                for key, window in of_rows.items()
            }
            for key, verdict in client_verdicts(scaled, PRODUCE).items():
                found.setdefault(key, set()).add(verdict.reason)
        return found


def drawn_fleet(seed: int, number: int, start_ms: int) -> Fleet:
    """The names of the clients of fleet `number` are its own, so that fleets can share a cluster."""
    random_ = random.Random(seed * 1_000_003 + number)
    factor = random_.choice([0.02, 0.2, 0.3, 0.4, 0.5, 1.0])
    falls = random_.random() < 0.2  # levels are held by the windows before
    gap_s = random_.randrange(180) if random_.random() < 0.3 else None
    late_share = random_.choice([0.0, 0.05, 0.5])
    early: list[Row] = []
    late: list[Row] = []
    for row in changing(random_, minutes=MINUTES, prefix=f"f{number}-"):
        at_s = (row.at_ms - START) // 1000
        if gap_s is not None and gap_s <= at_s < gap_s + 25:
            continue
        rate = row.rate * factor * (0.9 - at_s // 60 * 0.1 if falls else 1.0)
        moved = row._replace(at_ms=row.at_ms - START + start_ms, rate=rate)
        (late if random_.random() < late_share else early).append(moved)
    return Fleet(start_ms, early, late)


def compared(clickhouse: RunningClickHouse, seed: int, cases: int) -> list[Difference]:
    """The differences of `cases` fleets."""
    found: list[Difference] = []
    for first in range(0, cases, _OF_A_CLUSTER):
        sys.stderr.write(f"fleets {first} of {cases}: {len(found)} differences\n")
        start_ms = now_ms() // MINUTE * MINUTE - 10 * MINUTE  # the live path reads the last hours only
        fleets = [drawn_fleet(seed, number, start_ms) for number in range(first, min(first + _OF_A_CLUSTER, cases))]
        found += _of_cluster(clickhouse, f"fleets-{seed}-{first}", fleets)
    return found


def _of_cluster(clickhouse: RunningClickHouse, cluster: str, fleets: list[Fleet]) -> list[Difference]:
    expected: dict[Key, Expected] = {}
    verdicts: Verdicts = {}
    reasons: dict[tuple[str, str, int], set[str]] = {}
    for fleet in fleets:
        of_fleet = fleet.windows()
        expected |= of_fleet
        verdicts |= client_verdicts(of_fleet, PRODUCE)
        reasons |= fleet.reasons()
    start_ms = fleets[0].start_ms
    options = HeadroomOptions(clickhouse.url, TimeRange(start_ms, start_ms + MINUTES * MINUTE, 60), cluster=cluster)
    stream = replace(options, cluster=f"{cluster}-stream", stream=True, once=True)
    early = [row for fleet in fleets for row in fleet.early]
    late = [row for fleet in fleets for row in fleet.late]
    for arriving in (early, [*late, *early[: len(early) // 2]]):  # late rows come with duplicates of others
        for name in (cluster, stream.cluster):
            insert(clickhouse.store, arriving, name)
        compute_levels(clickhouse.store, *(start_ms // 1000 + 60 * minute for minute in range(MINUTES)))
        quota_headroom.run(options)
        quota_headroom.run(stream)
    found = list(_differences("usage_1m", _windows(clickhouse, cluster, start_ms), expected, {}))
    for path, table, name, muted in (
        ("live", "headroom_by_minute", cluster, "muted_ms"),
        ("job", "quota_utilization_committed", cluster, "throttled_s * 1000"),
        ("stream", "quota_utilization_committed", stream.cluster, "throttled_s * 1000"),
    ):
        shown = _verdicts(clickhouse, table, name, muted)
        # A stream also computes the windows after the range that a throttle time reaches.
        inside = {key: row for key, row in shown.items() if key[2] < options.when.to_ms}
        found += _differences(path, inside, verdicts, reasons)
    return found


def _windows(clickhouse: RunningClickHouse, cluster: str, start_ms: int) -> dict[Key, Expected]:
    store, end_ms = clickhouse.store.clickhouse, start_ms + MINUTES * MINUTE
    complete(store, "gateway", start_ms, end_ms)
    reported = {}
    for minute_ms in range(start_ms, end_ms, MINUTE):
        for row in windows_of(stored_minute(store, minute_ms), 60, end_ms).to_pylist():
            if row["cluster"] == cluster:
                key = (row["user"], row["client_id"], row["broker_id"], minute_ms)
                row["greediest"] = (row["greediest_user"], row["greediest_client_id"])
                reported[key] = Expected(**{name: row[name] for name in Expected._fields})
    return reported


def _verdicts(clickhouse: RunningClickHouse, table: str, cluster: str, muted_ms: str) -> dict[Any, tuple[Any, ...]]:
    rows = clickhouse.store.query(
        "SELECT user, client_id, toInt64(toUnixTimestamp(window_start)) * 1000, broker_id, toString(level), limit,"
        f" usage, utilization, utilization_p95, toFloat64({muted_ms}), reason, implied_limit FROM headroom.{table}"
        f" WHERE cluster = '{cluster}'"
    )
    return {tuple(row[:3]): tuple(row[3:]) for row in rows}


def _differences(
    path: str,
    reported: Mapping[Any, tuple[Any, ...]],
    expected: Mapping[Any, tuple[Any, ...]],
    reasons: Mapping[Any, set[str]],
) -> Iterator[Difference]:
    """Of what is shown and what is right by key; empty for what only one has. `reasons`: the right ones of verdicts."""
    for key in sorted(reported.keys() | expected.keys()):
        shown, right = reported.get(key, ()), expected.get(key, ())
        if key in reasons and shown and (reason := shown[_REASON]) in reasons[key]:
            right = (*right[:_REASON], reason, *right[_REASON + 1 :])
        if len(shown) != len(right) or not all(map(is_equal, shown, right)):
            yield path, key, f"{shown} instead of {right}"


def is_equal(one: object, other: object) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    return one == other
