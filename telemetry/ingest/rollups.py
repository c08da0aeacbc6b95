"""Schedules the hourly rollups: which hours have new points, and when each is recomputed from raw points.

An hour is pending until its rollup was computed after its last point was written. Pending hours are saved with the
position in the spool, so that a crash causes at most one redundant computation.

An hour is computed in slices by series id, which is a hash, so that the memory of a computation does not depend on the
number of series. Batches may be written between two slices. Computing a slice again replaces its rows by equal or
fuller ones, so an interrupted hour starts again at its first slice.
"""

from collections.abc import Iterable
from typing import NamedTuple

from exporters.clickhouse.store import Store

MS_PER_HOUR = 3_600_000
_IDLE_SHARE = 19  # pause after a computation, in multiples of its duration: rollups use at most a twentieth of the time

_SERIES_PER_SLICE = 1_000_000  # 290 MiB of ClickHouse's memory: 130 of any computation, 160 bytes a series
_SERIES_IDS = 1 << 64

# FINAL: a point that was pushed twice counts once. PREWHERE is evaluated before FINAL merges rows, WHERE after it; all
# rows of a point have its series id. Groups in the sort order of `points`. A series without a row in `series` has no
# temporality. No FINAL of series: the temporality is part of the id. One thread: two need twice the memory, and a
# third more CPU.
ROLL_UP = """
INSERT INTO points_1h
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
        FROM points FINAL
        PREWHERE series_id BETWEEN {first_id:UInt64} AND {last_id:UInt64}
        WHERE ts >= toDateTime64({hour_s:UInt32}, 3, 'UTC') AND ts < toDateTime64({hour_s:UInt32} + 3600, 3, 'UTC')
    )
    GROUP BY cluster, metric, toStartOfHour(ts), principal, client_id, client_instance_id, series_id
) AS p
LEFT ANY JOIN (
    SELECT series_id, temporality FROM series WHERE series_id BETWEEN {first_id:UInt64} AND {last_id:UInt64}
) AS s ON p.series_id = s.series_id
SETTINGS optimize_aggregation_in_order = 1, max_threads = 1, max_execution_time = 0
"""


class Slice(NamedTuple):
    """The series of an hour whose ids are in one of `of` equal ranges; `number` counts from 0."""

    hour: int
    number: int
    of: int

    def parameters(self) -> dict[str, int]:
        first, end = (n * _SERIES_IDS // self.of for n in (self.number, self.number + 1))
        return {"hour_s": self.hour * MS_PER_HOUR // 1000, "first_id": first, "last_id": end - 1}


def number_of_series(store: Store) -> int:
    """Rows of `series`, those that are not merged yet included: a computation reads them all. Raises StoreError."""
    (row,) = store.rows("SELECT count() AS found FROM series")
    return int(row["found"])


def slices(hour: int, series: int) -> list[Slice]:
    """Of an hour. `series`: result of `number_of_series`."""
    count = max(1, -(-series // _SERIES_PER_SLICE))
    return [Slice(hour, number, count) for number in range(count)]


class TouchedHours:
    """Hours since 1970 with points that are not rolled up, in the order of their first new point.

    The clock may be set: what is due some time after a moment stays due so long after it when the clock goes back.
    """

    def __init__(self, hours: Iterable[int], interval_ms: int) -> None:
        """`hours`: pending ones of an earlier process. An hour is due `interval_ms` after its first new point."""
        self._touched_ms: dict[int, int] = dict.fromkeys(hours, 0)
        self._interval_ms = interval_ms
        self._not_before_ms = 0
        self._latest_ms = 0
        self._slices: list[Slice] = []  # of the hour that is being computed, those that are left

    def __len__(self) -> int:
        return len(self.as_list())

    def touch(self, hours: Iterable[int], now_ms: int) -> None:
        """Marks the hours of newly written points as pending."""
        self._follow(now_ms)
        for hour in hours:
            self._touched_ms.setdefault(hour, now_ms)

    def is_due(self, now_ms: int) -> bool:
        self._follow(now_ms)
        if now_ms < self._not_before_ms:
            return False
        if self._slices:
            return True
        touched_ms = next(iter(self._touched_ms.values()), None)
        return touched_ms is not None and touched_ms + self._interval_ms <= now_ms

    @property
    def current(self) -> Slice | None:
        """The slice to compute next, if an hour has begun."""
        return self._slices[0] if self._slices else None

    def begin(self, series: int) -> Slice:
        """Begins the first pending hour and returns its first slice. `series`: result of `number_of_series`.

        Points that are written from now on touch the hour again: slices that are computed before them lack them.
        """
        hour = next(iter(self._touched_ms))
        del self._touched_ms[hour]
        self._slices = slices(hour, series)
        return self._slices[0]

    def computed(self, took_ms: int, now_ms: int) -> None:
        """The current slice now contains all points written so far."""
        del self._slices[0]
        self._not_before_ms = now_ms + _IDLE_SHARE * took_ms

    def failed(self, now_ms: int) -> None:
        """Schedules a retry after `interval_ms`."""
        self._not_before_ms = now_ms + self._interval_ms

    def _follow(self, now_ms: int) -> None:
        back_ms, self._latest_ms = self._latest_ms - now_ms, now_ms
        if back_ms > 0:
            self._not_before_ms -= back_ms
            self._touched_ms = {hour: touched_ms - back_ms for hour, touched_ms in self._touched_ms.items()}

    def as_list(self) -> list[int]:
        """Pending hours, to be saved."""
        return list(dict.fromkeys([*(part.hour for part in self._slices[:1]), *self._touched_ms]))
