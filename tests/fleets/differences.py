"""Draws fleets and compares every path of the product with the reference: windows from samples, windows from usage_1m,
the live minutes, the job and the job with --stream; before and after late rows, and with each row stored twice."""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from quota_metrics.levels.windows_query import SETTINGS, Samples, WindowsQuery, store_minutes
from spark_jobs.jobs import quota_headroom
from spark_jobs.options import HeadroomOptions
from spark_jobs.time_range import TimeRange
from tests.fleets.fleet import MINUTES, Fleet, Verdicts, drawn_fleet
from tests.kit.clickhouse import RunningClickHouse, connected
from tests.kit.levels import compute_levels, now_ms
from tests.kit.levels_reference import ClientVerdict
from tests.kit.usage_rows import MINUTE, PRODUCE, insert
from tests.kit.windows_reference import Expected, Key

PATHS = ("samples", "usage_1m", "live", "job", "stream")
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
    with tempfile.TemporaryDirectory() as checkpoint:
        stream = HeadroomOptions(
            clickhouse.url,
            options.when,
            cluster=f"{cluster}-stream",
            stream=True,
            once=True,
            checkpoint=Path(checkpoint),
        )
        early = [row for fleet in fleets for row in fleet.early]
        late = [row for fleet in fleets for row in fleet.late]
        for arriving in (early, [*late, *early[: len(early) // 2]]):  # late rows come with duplicates of others
            for name in (cluster, stream.cluster):
                insert(clickhouse.store, arriving, name)
            compute_levels(clickhouse.store, *(start_ms // 1000 + 60 * minute for minute in range(MINUTES)))
            quota_headroom.run(options)
            _stream_once(clickhouse, stream)
    found: list[Difference] = []
    for path, samples in (("samples", Samples.USAGE), ("usage_1m", Samples.MINUTES)):
        reported = _windows(clickhouse, cluster, start_ms, samples)
        found += _windows_differences(path, reported, expected)
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


def _stream_once(clickhouse: RunningClickHouse, options: HeadroomOptions) -> None:
    """A stream leaves the newest second for later, so it runs when that is over."""
    newest = (
        "SELECT max(received_at) < now64(3) - INTERVAL 1 SECOND FROM headroom.quota_usage WHERE cluster = {name:String}"
    )
    while not clickhouse.store.query(newest, {"name": options.cluster})[0][0]:
        pass
    quota_headroom.run(options)


def _windows(clickhouse: RunningClickHouse, cluster: str, start_ms: int, samples: Samples) -> dict[Key, Expected]:
    end_ms = start_ms + MINUTES * MINUTE
    asked: dict[str, Any] = {"from_ms": start_ms, "to_ms": end_ms, "window_ms": MINUTE, "run": "none"}
    asked |= {"source": "gateway", "cluster": cluster, "quota_key": PRODUCE, "computed_ms": now_ms()}
    with connected(clickhouse.writer) as client:
        if samples is Samples.MINUTES:
            client.command(store_minutes(), asked)
        rows = client.query(f"{WindowsQuery(60, samples).usage()} {SETTINGS}", asked).named_results()
        return {(r["user"], r["client_id"], r["broker_id"], r["window_start_ms"]): _expected(r) for r in rows}


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
