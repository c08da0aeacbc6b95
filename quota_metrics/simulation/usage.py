"""Recorded usage of clients as columns, when it may come to a limit, and the brokers' quota windows. Sans-I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from quota_metrics.simulation.replay import REQUEST_MS
from quota_metrics.windows import QuotaWindow

Column: TypeAlias = NDArray[np.int64]

_STEP_MS = 2 * REQUEST_MS  # an interval that is no multiple of REQUEST_MS has longer steps
_STALL = 2.5  # in intervals: bare rows further apart are not of successive intervals
_USUAL_MS = 1000  # the interval of bare rows, if there are too few to tell


class BrokerWindow(NamedTuple):
    """`is_recorded`: the recorded rates are of this window."""

    window: QuotaWindow
    is_recorded: bool = True


class BrokerWindows:
    """The quota window of each broker. A broker that is not known has that of another one, because brokers of a cluster
    usually agree."""

    def __init__(self, windows: Mapping[int, BrokerWindow]) -> None:
        self._windows = windows
        self._other = next(iter(windows.values()), BrokerWindow(QuotaWindow()))

    def at(self, broker_id: int) -> BrokerWindow:
        return self._windows.get(broker_id, self._other)

    @property
    def distinct(self) -> frozenset[BrokerWindow]:
        """All that `at` may return."""
        return frozenset((*self._windows.values(), self._other))


class ClientAtBroker(NamedTuple):
    quota_key: str
    user: str
    client_id: str
    broker_id: int


class Recorded(NamedTuple):
    """Rows of quota_usage of one client at a broker as columns, in the order of ts_ms: bytes of [start_ms, ts_ms), and
    throttling."""

    ts_ms: Column
    start_ms: Column
    bytes: Column
    muted_ms: Column
    throttle_ms: NDArray[np.float64]

    def until(self, from_ms: int, to_ms: int) -> Recorded:
        """The rows with ts in (from_ms, to_ms]."""
        first, end = np.searchsorted(self.ts_ms, (from_ms, to_ms), side="right")
        return Recorded._make(column[first:end] for column in self)


def recorded(
    ts_ms: Sequence[int],
    interval_ms: Sequence[int],
    byte_counts: Sequence[int],
    muted_ms: Sequence[int],
    throttle_ms: Sequence[float],
) -> Recorded:
    """From columns in any order. Rows that others inserted may be bare, with an interval of 0: such a row covers the
    time since the one before, if that is near, and mutes the client from ts_ms on for its throttle time."""
    ts = np.asarray(ts_ms, np.int64)
    order = np.argsort(ts, kind="stable")
    columns = (ts, interval_ms, byte_counts, muted_ms)
    ts, interval, nbytes, muted = (np.asarray(column, np.int64)[order] for column in columns)
    throttle = np.asarray(throttle_ms, np.float64)[order]
    if len(ts) and not interval.all():
        is_bare, gaps = interval == 0, np.diff(ts)
        usual = int(np.median(gaps)) if len(gaps) > 3 else _USUAL_MS
        since = np.concatenate(([usual], gaps))
        # Throttle times that overlap count once.
        until = np.maximum.accumulate(ts + np.where(is_bare, throttle, 0.0))
        new_ms = until - np.maximum(ts, np.concatenate((ts[:1], until[:-1])))
        muted = np.where(is_bare, np.maximum(new_ms, 0.0).astype(np.int64), muted)
        interval = np.where(is_bare, np.where((since > 0) & (since <= _STALL * usual), since, usual), interval)
    return Recorded(ts, ts - interval, nbytes, muted, throttle)


NOTHING = recorded([], [], [], [], [])


class Arrivals:
    """The bytes of clients that share a limit at a broker, in the order of time."""

    def __init__(self, usages: Iterable[Recorded]) -> None:
        used = list(usages)
        ts = np.concatenate([usage.ts_ms for usage in used])
        order = np.argsort(ts, kind="stable")
        self.ts_ms = ts[order]
        self.start_ms = np.concatenate([usage.start_ms for usage in used])[order]
        self.bytes = np.concatenate([usage.bytes for usage in used])[order]
        self.member = np.repeat(np.arange(len(used)), [len(usage.ts_ms) for usage in used])[order]
        # Before this no later row has bytes.
        self.next_start_ms = np.minimum.accumulate(self.start_ms[::-1])[::-1]

    def __len__(self) -> int:
        return len(self.ts_ms)

    def peaks(self, window: QuotaWindow) -> NDArray[np.float64]:
        """For each row the highest rate that a broker may measure from its start to its end, if all is sent at once.

        Kafka's rate is the bytes of at most `samples` + 1 windows, divided by the time that they span, but by no less
        than `samples` - 1 windows: so at most what arrived within `samples` windows / (`samples` - 1) windows, or
        within `samples` + 1 windows / `samples` windows. A row's bytes arrive evenly, in steps of at most _STEP_MS."""
        highest = np.zeros(len(self))
        for held in (window, window._replace(samples=window.samples + 1)):
            highest = np.maximum(highest, self._most_within(held.length_ms) / held.full_s)
        return highest

    def _most_within(self, length_ms: int) -> NDArray[np.float64]:
        """For each row the most bytes that arrive within `length_ms` and end within the row."""
        moments = np.unique(np.concatenate((self.start_ms, self.ts_ms)))
        so_far = np.zeros(len(moments))
        # The rate of arrival is constant between two moments.
        spans = np.maximum(self.ts_ms - self.start_ms, 1)
        slope = np.zeros(len(moments) + 1)
        np.add.at(slope, np.searchsorted(moments, self.start_ms), self.bytes / spans)
        np.add.at(slope, np.searchsorted(moments, self.ts_ms), -self.bytes / spans)
        so_far[1:] = np.cumsum(np.cumsum(slope[:-1])[:-1] * np.diff(moments))
        ends = np.unique(np.concatenate((moments, moments + _STEP_MS + length_ms)))
        ahead = np.interp(ends, moments, so_far)
        most = ahead - np.interp(ends - _STEP_MS - length_ms, moments, so_far)
        # The highest of them in each row, or of the nearest ones.
        first = np.maximum(np.searchsorted(ends, self.start_ms, side="right") - 1, 0)
        last = np.minimum(np.searchsorted(ends, self.ts_ms + _STEP_MS, side="left"), len(ends) - 1) + 1
        return np.maximum.reduceat(np.append(most, 0.0), np.column_stack((first, last)).ravel())[::2]
