"""Replays recorded usage through the broker's window under another limit. Sans-I/O.

The broker is modelled by ClientQuotaManager's Rate (quota_metrics.windows) and KafkaApis, which accepts a Produce and
mutes its connection for the throttle time, but answers a Fetch without records, removes its bytes from the window and
returns them at a later Fetch. The client's bytes wait while it is muted, until the broker reads again.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence

from exporters.levels import MutedTime
from exporters.model import UsageSample
from quota_metrics.windows import Rate, throttle_time_ms

# The number of requests into which the bytes of an interval are split, because the recording has only sums. Waiting
# Produce requests remain separate; bytes that wait for a Fetch are returned together.
REQUEST_MS = 100
GIVE_UP_MS = 120_000  # delivery.timeout.ms of Java's producer: records that wait longer fail
_MAX_QUEUE = 2_048


class Throttling:
    """Muted time of one client at one broker, the same for recordings, replays and real runs (DECISIONS 19).

    A row with an interval brings its muted time. Throttle times that are announced, by the replayed broker or by rows
    without an interval, mute [ts, ts + throttle_ms); of these `total_ms` holds what has passed up to `advance`.
    """

    __slots__ = ("_announced", "_now_ms", "total_ms")

    def __init__(self, start_ms: int) -> None:
        self.total_ms = 0.0
        self._now_ms: float = start_ms
        self._announced = MutedTime()

    @property
    def longest_ms(self) -> float:
        """The longest throttle time."""
        return self._announced.longest_ms

    @property
    def over(self) -> bool:
        """Whether all announced throttle times have elapsed."""
        return self._announced.until_ms <= self._now_ms

    def add(self, sample: UsageSample) -> None:
        """A recorded row."""
        if sample.interval_ms > 0:
            self.total_ms += sample.muted_ms
            self._announced.longest_ms = max(self._announced.longest_ms, sample.throttle_ms)
        else:
            self.announce(sample.ts_ms, sample.throttle_ms)

    def announce(self, ts_ms: int, throttle_ms: float) -> None:
        """Records the throttle time of a response; 0: not throttled."""
        self._announced.announce(ts_ms, throttle_ms)

    def advance(self, now_ms: int) -> None:
        """Advances the clock to `now_ms`."""
        if now_ms > self._now_ms:
            self.total_ms += self._announced.muted_ms(self._now_ms, now_ms)
            self._announced.drop_until(now_ms)
            self._now_ms = now_ms


class Sender:
    """One client's connection to one broker: waiting bytes, and the end of its mute."""

    __slots__ = (
        "_fetches",
        "_queue",
        "delayed_bytes",
        "given_up_bytes",
        "longest_delay_ms",
        "muted_until_ms",
        "responses",
        "throttling",
        "waiting_bytes",
    )

    def __init__(self, *, fetches: bool, start_ms: int = 0) -> None:
        self.waiting_bytes = 0
        self.muted_until_ms = 0
        self.responses = 0  # throttled ones
        self.throttling = Throttling(start_ms)
        self.delayed_bytes = 0
        self.longest_delay_ms = 0
        self.given_up_bytes = 0
        self._fetches = fetches
        self._queue: deque[tuple[int, int]] = deque()  # arrival time, bytes

    def arrive(self, start_ms: int, end_ms: int, byte_count: int) -> None:
        """Adds the bytes that the application had for the broker, or the broker for it, in the interval."""
        parts = max((end_ms - start_ms) // REQUEST_MS, 1)
        share, rest = divmod(byte_count, parts)
        for part in range(parts):
            size = share + (part < rest)
            if size:
                self._queue.append((start_ms + part * (end_ms - start_ms) // parts, size))
        self.waiting_bytes += byte_count
        if len(self._queue) > _MAX_QUEUE:
            self._coarsen()

    def due_ms(self) -> int:
        """When the next request is read. Bytes must be waiting."""
        return max(self._queue[0][0], self.muted_until_ms)

    def next_bytes(self, now_ms: int, most: int) -> int:
        """Bytes of the next request, or of its response, which holds at most `most`."""
        if not self._fetches:
            return self._queue[0][1]
        to_come = 0
        for arrived_ms, size in reversed(self._queue):
            if arrived_ms <= now_ms:
                break
            to_come += size
        return min(self.waiting_bytes - to_come, most)

    def hold(self, now_ms: int, throttle_ms: int) -> None:
        """The broker announced a throttle time and mutes the connection."""
        self.muted_until_ms = now_ms + throttle_ms
        self.responses += 1
        self.throttling.announce(now_ms, throttle_ms)

    def sent(self, byte_count: int, now_ms: int) -> None:
        """Removes the oldest waiting bytes, which have been sent."""
        self.waiting_bytes -= byte_count
        while byte_count:
            arrived_ms, size = self._queue.popleft()
            through = min(size, byte_count)
            if size > through:
                self._queue.appendleft((arrived_ms, size - through))
            byte_count -= through
            if now_ms > arrived_ms:
                self.delayed_bytes += through
                self.longest_delay_ms = max(self.longest_delay_ms, now_ms - arrived_ms)

    def give_up(self, now_ms: int) -> None:
        """Drops a producer's records that waited too long; a consumer never drops any."""
        while not self._fetches and self._queue and self._queue[0][0] < now_ms - GIVE_UP_MS:
            _, size = self._queue.popleft()
            self.given_up_bytes += size
            self.waiting_bytes -= size

    def _coarsen(self) -> None:
        """Merges two entries under the older time, which bounds memory for a consumer that lags for hours."""
        parts = list(self._queue)
        self._queue = deque((older[0], sum(size for _, size in parts[i : i + 2])) for i, older in _every_second(parts))


class Bucket:
    """One quota at one broker: the rate of all clients that share it, and the bound. Time must not go backwards."""

    def __init__(self, *, fetches: bool, samples: int, window_ms: int) -> None:
        self.bound: float | None = None  # None: no quota
        self.peak = 0.0  # the highest rate so far / bound
        self._fetches = fetches
        self._rate = Rate(samples, window_ms)
        self._full_windows_s = (samples - 1) * window_ms / 1000
        self._now_ms = 0

    def run(self, senders: Sequence[Sender], until_ms: int) -> None:
        """Runs all requests that are due before `until_ms`, in order of time."""
        due = [(sender.due_ms(), place) for place, sender in enumerate(senders) if sender.waiting_bytes]
        heapq.heapify(due)
        while due and due[0][0] < until_ms:
            due_ms, place = due[0]
            sender = senders[place]
            self._now_ms = max(self._now_ms, due_ms)
            self._request(sender, self._now_ms)
            if sender.waiting_bytes:
                heapq.heapreplace(due, (sender.due_ms(), place))
            else:
                heapq.heappop(due)

    def _request(self, sender: Sender, now_ms: int) -> None:
        if self.bound is None:
            sender.sent(sender.next_bytes(now_ms, sender.waiting_bytes), now_ms)
            return
        # A fetch never returns more than fits into the window (ClientQuotaManager.maxValueInQuotaWindow).
        byte_count = sender.next_bytes(now_ms, max(int(self.bound * self._full_windows_s), 1))
        self._rate.record(byte_count, now_ms)
        throttle_ms = self._throttle_ms(self.bound, now_ms)
        if throttle_ms > 0:
            sender.hold(now_ms, throttle_ms)
            if self._fetches:
                self._rate.record(-byte_count, now_ms)
                return
        sender.sent(byte_count, now_ms)

    def _throttle_ms(self, bound: float, now_ms: int) -> int:
        rate = self._rate.measure(now_ms)
        self.peak = max(self.peak, rate / bound)
        return throttle_time_ms(rate, bound, self._rate.elapsed_ms(now_ms)) if rate > bound else 0


def _every_second(parts: Sequence[tuple[int, int]]) -> list[tuple[int, tuple[int, int]]]:
    return [(place, parts[place]) for place in range(0, len(parts), 2)]
