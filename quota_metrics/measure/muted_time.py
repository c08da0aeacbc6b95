"""How long a client was muted: the union of the throttle times that a broker announced. Sans-I/O."""

from __future__ import annotations

from quota_metrics.verdict.thresholds import MUTED_LOOKBACK_MS


class MutedTime:
    """How long a client was muted: the union of the announced throttle times.

    A throttle time announced at `ts_ms` mutes [ts_ms, ts_ms + throttle_ms). Announcements may come out of order
    (several network processes). Spans that ended more than `keep_ms` before an announcement are dropped.
    """

    __slots__ = ("_keep_ms", "_spans")

    def __init__(self, keep_ms: int = MUTED_LOOKBACK_MS) -> None:
        self._keep_ms = keep_ms
        self._spans: list[tuple[float, float]] = []

    def announce(self, ts_ms: int, throttle_ms: float) -> None:
        """Adds a throttle time, above 0."""
        self.drop_until(ts_ms - self._keep_ms)
        # The spans that touch the new one become one with it.
        spans = self._spans
        start_ms: float = ts_ms
        end_ms = ts_ms + throttle_ms
        first = len(spans)
        while first and spans[first - 1][1] >= start_ms:
            first -= 1
        last = first
        while last < len(spans) and spans[last][0] <= end_ms:
            last += 1
        if last > first:
            start_ms, end_ms = min(start_ms, spans[first][0]), max(end_ms, spans[last - 1][1])
        spans[first:last] = [(start_ms, end_ms)]

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
