"""Schedules the hourly rollups: which hours have new points, and when each is recomputed from raw points. Sans-I/O.

An hour is pending until its rollup was computed after its last point was written. Pending hours are saved with the
position in the spool, so that a crash causes at most one redundant computation.
"""

from __future__ import annotations

from collections.abc import Iterable

MS_PER_HOUR = 3_600_000
_IDLE_SHARE = 19  # pause after a computation, in multiples of its duration: rollups use at most a twentieth of the time

# FINAL: a point that was pushed twice counts once. Groups in the sort order of `points`, so that memory does not
# grow with the number of series. A series without a row in `series` has no temporality. No FINAL of
# series: the temporality is part of the id.
ROLL_UP = """
INSERT INTO headroom.points_1h
    (cluster, metric, bucket, principal, client_id, client_instance_id, series_id, temporality,
     min, max, sum, count, last, points)
SELECT p.cluster, p.metric, p.bucket, p.principal, p.client_id, p.client_instance_id, p.series_id, s.temporality,
    if(p.count = 0, nan, p.min), if(p.count = 0, nan, p.max), p.sum, p.count, if(p.count = 0, nan, p.last), p.points
FROM (
    SELECT cluster, metric, toStartOfHour(ts) AS bucket, principal, client_id, client_instance_id, series_id,
        minIf(value, measured) AS min, maxIf(value, measured) AS max, sumIf(value, measured) AS sum,
        countIf(measured) AS count, argMaxIf(value, ts, measured) AS last, count() AS points
    FROM (
        SELECT cluster, metric, ts, principal, client_id, client_instance_id, series_id, value,
            bitAnd(flags, 1) = 0 AND NOT isNaN(value) AS measured
        FROM headroom.points FINAL
        WHERE ts >= toDateTime64({hour_s:UInt32}, 3, 'UTC') AND ts < toDateTime64({hour_s:UInt32} + 3600, 3, 'UTC')
    )
    GROUP BY cluster, metric, toStartOfHour(ts), principal, client_id, client_instance_id, series_id
) AS p
LEFT ANY JOIN (SELECT series_id, temporality FROM headroom.series) AS s ON p.series_id = s.series_id
SETTINGS optimize_aggregation_in_order = 1, max_execution_time = 0
"""


def roll_up_parameters(hour: int) -> dict[str, int]:
    """The parameters of ROLL_UP."""
    return {"hour_s": hour * MS_PER_HOUR // 1000}


class TouchedHours:
    """Hours since 1970 with points that are not rolled up, in the order of their first new point."""

    def __init__(self, hours: Iterable[int], interval_ms: int) -> None:
        """`hours`: pending ones of an earlier process. An hour is due `interval_ms` after its first new point."""
        self._touched_ms: dict[int, int] = dict.fromkeys(hours, 0)
        self._interval_ms = interval_ms
        self._not_before_ms = 0

    def __len__(self) -> int:
        return len(self._touched_ms)

    def touch(self, hours: Iterable[int], now_ms: int) -> None:
        """Marks the hours of newly written points as pending."""
        for hour in hours:
            self._touched_ms.setdefault(hour, now_ms)

    def due(self, now_ms: int) -> int | None:
        """The hour to compute now, if any."""
        if now_ms < self._not_before_ms:
            return None
        hour = next(iter(self._touched_ms), None)
        return hour if hour is not None and self._touched_ms[hour] + self._interval_ms <= now_ms else None

    def computed(self, hour: int, took_ms: int, now_ms: int) -> None:
        """The rollup of the hour now contains all points written so far."""
        del self._touched_ms[hour]
        self._not_before_ms = now_ms + _IDLE_SHARE * took_ms

    def failed(self, now_ms: int) -> None:
        """Schedules a retry after `interval_ms`."""
        self._not_before_ms = now_ms + self._interval_ms

    def as_list(self) -> list[int]:
        """Pending hours, to be saved."""
        return list(self._touched_ms)
