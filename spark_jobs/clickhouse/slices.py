"""Splits a read: one Spark task and one ClickHouse query per slice of time, cluster and quota key.

A bucket never spans clusters or quota keys, and the rates of its clients are summed per second. So a slice has complete
windows of one cluster and quota key, in total about the weight SLICE_ROWS. `divisions` divides what is heavier. The
weight is the number of rows, or of the seconds in all windows of all clients, if that is more: memory holds an array of
seconds per client and window, however few rows there are (1.2 million rows of 100,000 clients took 425 MiB).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple

from spark_jobs.time_range import THROTTLE_LOOKBACK_MS, TimeRange

SLICE_ROWS = 2_000_000  # the query of 1.8 million rows took ClickHouse 110 MiB; the limit that we keep is 256
FEWEST_ROWS = 1_500_000  # a slice within an hour reads the whole hour: fewer rows do not pay for that
_STEPS = 512  # maximum number of counting steps in a range


class Count(NamedTuple):
    """The weight of the rows of quota_usage in one step of the range."""

    cluster: str
    quota_key: str
    start_ms: int
    weight: int


def step_ms(when: TimeRange) -> int:
    """Length of the steps in which rows are counted: a multiple of the window, so that there are at most about 500
    steps."""
    windows = max((when.to_ms - when.from_ms) // when.window_ms // _STEPS, 1)
    return windows * when.window_ms


def slices(counts: Iterable[Count], when: TimeRange, cores: int) -> list[dict[str, Any]]:
    """Query parameters of each slice and its `weight`, from counts ordered by time. Slices of a cluster and quota key
    are contiguous and end after the longest possible throttle time of the last rows."""
    ordered = sorted(counts, key=lambda count: (count.cluster, count.quota_key, count.start_ms))
    total = sum(count.weight for count in ordered)
    most = min(SLICE_ROWS, max(total // (2 * cores), FEWEST_ROWS))
    found: list[dict[str, Any]] = []
    for (cluster, quota_key), group in groupby(ordered, key=lambda count: (count.cluster, count.quota_key)):
        key = {"cluster": cluster, "quota_key": quota_key, "window_ms": when.window_ms}
        found += [{**key, **bounds} for bounds in _bounds(list(group), when, most)]
    return found


def _bounds(counts: list[Count], when: TimeRange, most: int) -> Iterator[Mapping[str, int]]:
    # Steps are aligned to the epoch and may begin before the range.
    starts = [max(counts[0].start_ms, when.from_ms)]
    weights = [0]
    for count in counts:
        if weights[-1] and weights[-1] + count.weight > most and count.start_ms > starts[-1]:
            starts.append(count.start_ms)
            weights.append(0)
        weights[-1] += count.weight
    end = min(counts[-1].start_ms + step_ms(when) + THROTTLE_LOOKBACK_MS, when.to_ms)
    for start, following, weight in zip(starts, [*starts[1:], end], weights, strict=True):
        if start < following:
            yield {"from_ms": start, "to_ms": following, "weight": weight}
