"""The limit that a broker must have used, by the throttle times that it announced. Sans-I/O.

Kafka (QuotaUtils.throttleTime): throttle time = (rate - limit) / limit x elapsed, where rate x elapsed is what the
broker's window holds. So limit = rate x elapsed / (elapsed + throttle time), whoever decided the limit.
"""

from __future__ import annotations


class ImpliedLimit:
    """The estimate of one interval, from its longest throttle time, which rounding to milliseconds disturbs least.

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
