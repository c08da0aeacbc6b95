"""Levels of utilisation, the worst broker and throttled time, as DECISIONS 19 defines them. No I/O, no clock.

The views of deploy/clickhouse (headroom_by_minute) and the Spark job implement the same definitions; tests compare
them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

MUTED_LOOKBACK_MS = 600_000  # how long before a window a row may mute the client in it


class Level(IntEnum):
    """The values of ClickHouse's Enum8 `level`; greater is worse."""

    UNKNOWN = -1
    OK = 0
    WATCH = 1
    WARN = 2
    CRITICAL = 3
    THROTTLED = 4


class Thresholds(NamedTuple):
    """Shares of the limit at which levels begin. `muted`: the muted share of a window at which `throttled` begins."""

    watch: float = 0.60
    warn: float = 0.80
    critical: float = 0.95
    muted: float = 0.01


def level_of(
    utilization: float | None,
    muted_ms: float,
    window_ms: int,
    *,
    limit_known: bool,
    thresholds: Thresholds = Thresholds(),
) -> Level:
    """`utilization` is the greater of mean and p95 utilisation; None when no quota applies."""
    if muted_ms > 0 and muted_ms >= thresholds.muted * window_ms:
        return Level.THROTTLED
    if not limit_known:
        return Level.UNKNOWN
    share = -1.0 if utilization is None else utilization
    if share >= thresholds.critical or muted_ms > 0:
        return Level.CRITICAL
    if share >= thresholds.warn:
        return Level.WARN
    return Level.WATCH if share >= thresholds.watch else Level.OK


def worst_broker_order(
    utilization: float | None, muted_ms: float, window_ms: int, broker_id: int, thresholds: Thresholds = Thresholds()
) -> tuple[bool, float, float, int]:
    """Sort key: the broker with the greatest key represents the client."""
    throttled = muted_ms > 0 and muted_ms >= thresholds.muted * window_ms
    return throttled, -1.0 if utilization is None else utilization, muted_ms, -broker_id


class MutedTime:
    """How long a client was muted: the union of the announced throttle times.

    A throttle time announced at `ts_ms` mutes [ts_ms, ts_ms + throttle_ms). Announcements may come out of order
    (several network processes). Spans that ended more than `keep_ms` before an announcement are dropped.
    """

    __slots__ = ("_keep_ms", "_spans", "longest_ms")

    def __init__(self, keep_ms: int = MUTED_LOOKBACK_MS) -> None:
        self.longest_ms = 0.0
        self._keep_ms = keep_ms
        self._spans: list[tuple[float, float]] = []

    def announce(self, ts_ms: int, throttle_ms: float) -> None:
        """Adds a throttle time; values of 0 and below are ignored."""
        if throttle_ms <= 0:
            return
        self.longest_ms = max(self.longest_ms, throttle_ms)
        self.drop_until(ts_ms - self._keep_ms)
        self._merge(ts_ms, ts_ms + throttle_ms)

    def drop_until(self, ts_ms: float) -> None:
        """Forgets spans that ended before `ts_ms`."""
        while self._spans and self._spans[0][1] < ts_ms:
            del self._spans[0]

    def muted_ms(self, from_ms: float, to_ms: float) -> float:
        """The muted time of [from_ms, to_ms)."""
        return sum(max(min(end, to_ms) - max(start, from_ms), 0.0) for start, end in self._spans)

    @property
    def until_ms(self) -> float:
        """When the last announced throttle time ends; 0.0 without any."""
        return self._spans[-1][1] if self._spans else 0.0

    def _merge(self, start_ms: float, end_ms: float) -> None:
        """Replaces the spans that touch [start_ms, end_ms) by one."""
        spans = self._spans
        first = len(spans)
        while first and spans[first - 1][1] >= start_ms:
            first -= 1
        last = first
        while last < len(spans) and spans[last][0] <= end_ms:
            last += 1
        if last > first:
            start_ms, end_ms = min(start_ms, spans[first][0]), max(end_ms, spans[last - 1][1])
        spans[first:last] = [(start_ms, end_ms)]
