"""Draws fleets and compares every path of the product with the reference: windows from usage_1m, the live minutes, the
job and the job with --stream; before and after late rows, and with each row stored twice."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from quota_metrics.minutes.usage_minutes import complete, stored_minute
from quota_metrics.minutes.windows import windows_of
from spark_jobs.jobs import quota_headroom
from spark_jobs.options import HeadroomOptions
from spark_jobs.time_range import TimeRange
from tests.fleets.fleet import MINUTES, Fleet, Verdicts, drawn_fleet
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.levels import compute_levels, now_ms
from tests.kit.levels_reference import ClientVerdict
from tests.kit.usage_rows import MINUTE, insert
from tests.kit.windows_reference import Expected, Key

PATHS = ("usage_1m", "live", "job", "stream")
_OF_A_CLUSTER = 500
_REASON = ClientVerdict._fields.index("reason")


class Difference(NamedTuple):
    """A value that is not that of the reference."""

    path: str
    of: tuple[Any, ...]
    text: str


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
        expected |= fleet.windows()
        verdicts |= fleet.verdicts()
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
    found: list[Difference] = []
    found += _windows_differences("usage_1m", _windows(clickhouse, cluster, start_ms), expected)
    for path, table, name, muted in (
        ("live", "headroom_by_minute", cluster, "muted_ms"),
        ("job", "quota_utilization_committed", cluster, "throttled_s * 1000"),
        ("stream", "quota_utilization_committed", stream.cluster, "throttled_s * 1000"),
    ):
        shown = _verdicts(clickhouse, table, name, muted)
        # A stream also computes the windows after the range that a throttle time reaches.
        inside = {key: row for key, row in shown.items() if key[2] < options.when.to_ms}
        found += _verdict_differences(path, inside, verdicts, reasons)
    return found


def _windows(clickhouse: RunningClickHouse, cluster: str, start_ms: int) -> dict[Key, Expected]:
    store, end_ms = clickhouse.store.clickhouse, start_ms + MINUTES * MINUTE
    complete(store, "gateway", start_ms, end_ms)
    reported = {}
    for minute_ms in range(start_ms, end_ms, MINUTE):
        for row in windows_of(stored_minute(store, minute_ms), 60, end_ms).to_pylist():
            if row["cluster"] == cluster:
                reported[row["user"], row["client_id"], row["broker_id"], minute_ms] = _expected(row)
    return reported


def _expected(row: Mapping[str, Any]) -> Expected:
    named = {name: row[name] for name in Expected._fields if name != "greediest"}
    return Expected(**named, greediest=(row["greediest_user"], row["greediest_client_id"]))


def _windows_differences(
    path: str, reported: Mapping[Key, Expected], expected: Mapping[Key, Expected]
) -> Iterable[Difference]:
    for key in sorted(reported.keys() | expected.keys()):
        if key not in reported or key not in expected:
            yield Difference(path, key, "only in one")
            continue
        for name, one, other in zip(Expected._fields, reported[key], expected[key], strict=True):
            if not _is_equal(one, other):
                yield Difference(path, key, f"{name} {one} instead of {other}")


def _verdicts(clickhouse: RunningClickHouse, table: str, cluster: str, muted_ms: str) -> dict[Any, tuple[Any, ...]]:
    rows = clickhouse.store.query(
        "SELECT user, client_id, toInt64(toUnixTimestamp(window_start)) * 1000, broker_id, toString(level), limit,"
        f" usage, utilization, utilization_p95, toFloat64({muted_ms}), reason, implied_limit FROM headroom.{table}"
        f" WHERE cluster = '{cluster}'"
    )
    return {tuple(row[:3]): tuple(row[3:]) for row in rows}


def _verdict_differences(
    path: str, reported: Mapping[Any, tuple[Any, ...]], expected: Verdicts, reasons: Mapping[Any, set[str]]
) -> Iterable[Difference]:
    for key in sorted(reported.keys() | expected.keys()):
        right = tuple(expected[key]) if key in expected else ()
        shown = reported.get(key, ())
        if len(shown) == len(right) and (reason := shown[_REASON]) in reasons[key]:
            right = (*right[:_REASON], reason, *right[_REASON + 1 :])
        if len(shown) != len(right) or not all(map(_is_equal, shown, right)):
            yield Difference(path, key, f"{shown} instead of {right}")


def _is_equal(one: object, other: object) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    return one == other
