"""Kafka's quota windows: Rate over sampled sums, the token bucket, and the throttle times that follow from them.

Ports of org.apache.kafka.common.metrics.stats.{SampledStat, WindowedSum, Rate, TokenBucket} and of
org.apache.kafka.server.quota.QuotaUtils (4.x) with the same order of floating point operations, so that results are
equal to the last digit. Kafka's peculiarities are kept: samples start at their first record instead of on a grid,
incomplete windows count as full, steady traffic of one record a second reads 10 % high.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

LONG_MAX: Final = 2**63 - 1
LONG_MIN: Final = -(2**63)
UNLIMITED: Final = float(LONG_MAX)  # the bound, and the number of tokens, without a quota
LARGEST_BATCH: Final = 1_048_588  # bytes; Kafka's default of max.message.bytes


class QuotaWindow(NamedTuple):
    """A broker's quota.window.num, and quota.window.size.seconds in ms; the defaults are Kafka's."""

    samples: int = 11
    window_ms: int = 1000
    before_3_8: bool = False  # as in `Rate`
    is_assumed: bool = False  # the broker has no window: its throttle times follow from something else

    @property
    def length_ms(self) -> int:
        return self.samples * self.window_ms

    @property
    def full_s(self) -> float:
        """What a limit is multiplied with for the most that the window may hold
        (ClientQuotaManager.maxValueInQuotaWindow), and the least that a sum is divided by (Rate.windowSize)."""
        return max((self.samples - 1) * self.window_ms, 1) / 1000

    def rate(self) -> Rate:
        return Rate(self.samples, self.window_ms, before_3_8=self.before_3_8)


class Rate:
    """Bytes (or anything) per second over `samples` windows of `window_ms`.

    With `before_3_8` the rule of brokers up to 3.7: a sample expires by its start instead of its last record, and there
    are `samples` of them instead of one more.
    """

    def __init__(self, samples: int, window_ms: int, *, before_3_8: bool = False) -> None:
        self.samples = samples
        self.window_ms = window_ms
        self._slots = samples if before_3_8 else samples + 1
        self._horizon_ms = samples * window_ms
        self._purge_ms = 0  # no sample expires before
        self._current = 0
        self._values: list[float] = []
        self._start_ms: list[int] = []
        # The old rule measures age from the start: both names refer to the same list.
        self._last_ms: list[int] = self._start_ms if before_3_8 else []

    def record(self, value: float, now_ms: int) -> None:
        """Adds to the current sample, or begins the next one when the current one is full."""
        if not self._values:
            self._append(now_ms)
        elif now_ms - self._start_ms[self._current] >= self.window_ms:
            self._current = (self._current + 1) % self._slots
            if self._current >= len(self._values):
                self._append(now_ms)
            else:
                self._reset(self._current, now_ms)
        self._values[self._current] += value
        if self._last_ms is not self._start_ms:
            self._last_ms[self._current] = now_ms
            self._purge_ms = min(self._purge_ms, now_ms + self._horizon_ms)  # the clock may go back

    def measure(self, now_ms: int) -> float:
        """Units per second at `now_ms`."""
        self._purge(now_ms)
        total = 0.0
        for value in self._values:  # sum() of Python 3.12 and later compensates, Java does not
            total += value
        return total / (self.elapsed_ms(now_ms) / 1000.0)

    def elapsed_ms(self, now_ms: int) -> int:
        """The divisor of `measure` (Rate.windowSize), at least samples - 1 whole windows."""
        self._purge(now_ms)
        if not self._values:
            self._append(now_ms)
        elapsed = now_ms - min(self._start_ms)
        full = int(elapsed / self.window_ms)  # Java's division truncates towards zero, also after the clock went back
        if full < self.samples - 1:
            elapsed += (self.samples - 1 - full) * self.window_ms
        return max(elapsed, 1)

    def _append(self, now_ms: int) -> None:
        self._values.append(0.0)
        self._start_ms.append(now_ms)
        if self._last_ms is not self._start_ms:
            self._last_ms.append(now_ms)
        self._purge_ms = min(self._purge_ms, now_ms + self._horizon_ms)

    def _purge(self, now_ms: int) -> None:
        if now_ms < self._purge_ms:
            return
        for slot, last_ms in enumerate(self._last_ms):
            if now_ms - last_ms >= self._horizon_ms:
                self._reset(slot, now_ms)
        if self._last_ms:
            self._purge_ms = min(self._last_ms) + self._horizon_ms

    def _reset(self, slot: int, now_ms: int) -> None:
        self._values[slot] = 0.0
        self._start_ms[slot] = now_ms
        self._last_ms[slot] = now_ms
        self._purge_ms = min(self._purge_ms, now_ms + self._horizon_ms)


class TokenBucket:
    """Tokens that refill at `quota` per second, up to samples * window * quota; the balance may become negative.

    Changing the quota keeps the tokens and changes only refill and burst. Without a quota (None) nothing is recorded
    and the bucket measures UNLIMITED.
    """

    __slots__ = ("_last_ms", "_tokens", "quota", "samples", "window_ms")

    def __init__(self, samples: int, window_ms: int, quota: float | None) -> None:
        self.samples = samples
        self.window_ms = window_ms
        self.quota = quota
        self._tokens = 0.0
        self._last_ms = 0  # the epoch: a new bucket is full at its first use

    def record(self, value: float, now_ms: int) -> None:
        """Spends `value` tokens; a negative value returns tokens, up to the burst."""
        if self.quota is not None:
            burst = self._refill(self.quota, now_ms)
            self._tokens = min(self._tokens - value, burst)

    def measure(self, now_ms: int) -> float:
        """Tokens left; a negative number is a violation."""
        if self.quota is None:
            return UNLIMITED
        self._refill(self.quota, now_ms)
        return self._tokens

    def _refill(self, quota: float, now_ms: int) -> float:
        burst = self.samples * (self.window_ms / 1000.0) * quota
        self._tokens = min(self._tokens + quota * ((now_ms - self._last_ms) / 1000.0), burst)
        self._last_ms = now_ms
        return burst


def throttle_time_ms(rate: float, bound: float, elapsed_ms: int) -> int:
    """The delay that reduces `rate` to `bound` (QuotaUtils.throttleTime), for Produce and Fetch.

    `elapsed_ms` is Rate.elapsed_ms at the same moment. Negative when the rate is below the bound.
    """
    excess = rate - bound
    if bound == 0:
        return _round(math.copysign(math.inf, excess) if excess else math.nan)
    return _round(excess / bound * elapsed_ms)


def bounded_throttle_time_ms(rate: float, bound: float, elapsed_ms: int, max_ms: int) -> int:
    """`throttle_time_ms`, at most `max_ms`, for the request quota (one window) and connection quotas."""
    return min(throttle_time_ms(rate, bound, elapsed_ms), max_ms)


def _round(value: float) -> int:
    """Java's Math.round: half up, NaN becomes 0, clamped to the range of a long."""
    if math.isnan(value):
        return 0
    if not LONG_MIN < value < LONG_MAX:
        return LONG_MAX if value > 0 else LONG_MIN
    floor = math.floor(value)
    return floor + (value - floor >= 0.5)
