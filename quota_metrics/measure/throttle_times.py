"""What the throttle times that a broker announced tell: how long a client was muted, and the limit that the broker must
have used. Sans-I/O."""

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


class ImpliedLimit:
    """The estimate of one interval, from its longest throttle time, which rounding to milliseconds disturbs least.

    Kafka (QuotaUtils.throttleTime): throttle time = (rate - limit) / limit x elapsed, where rate x elapsed is what the
    broker's window holds. So limit = rate x elapsed / (elapsed + throttle time), whoever decided the limit.
    `limit`: units per second; 0.0 without an estimate.
    """

    __slots__ = ("_longest_ms", "_response_is_unseen", "_waiting", "limit")

    def __init__(self, *, response_is_unseen: bool) -> None:
        """`response_is_unseen`: Fetch, where the rate includes a response that the broker did not send and has
        un-recorded. The first response after the throttle time is taken for it: the client asks for the same again."""
        self.limit = 0.0
        self._response_is_unseen = response_is_unseen
        self._longest_ms = 0
        self._waiting: tuple[float, int, int] | None = None

    def throttled(self, rate: float, elapsed_ms: int, throttle_ms: int, now_ms: int) -> None:
        """A throttle time of at least 1 ms, with the window's rate and divisor (Rate.elapsed_ms) at this moment."""
        if throttle_ms <= self._longest_ms:
            return
        in_window, over_ms = rate * elapsed_ms, elapsed_ms + throttle_ms
        if not self._response_is_unseen:
            self.limit = in_window / over_ms
        elif self._waiting is None or now_ms >= self._waiting[2]:
            self._waiting = (in_window, over_ms, now_ms + throttle_ms)
        self._longest_ms = throttle_ms

    def transferred(self, counted: int, now_ms: int) -> None:
        """A response that the broker sent. During the throttle time it belongs to another connection."""
        if self._waiting is not None and now_ms >= self._waiting[2]:
            in_window, over_ms, _ = self._waiting
            self.limit = (in_window + counted * 1000) / over_ms
            self._waiting = None

    def begin_interval(self) -> None:
        self.limit = 0.0
        self._longest_ms = 0
