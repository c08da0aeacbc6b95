"""Replays recorded usage through the broker's window under another limit. Sans-I/O.

The broker is modelled by ClientQuotaManager's Rate (quota_metrics.windows) and KafkaApis, which accepts a Produce and
mutes its connection for the throttle time, but answers a Fetch without records, removes its bytes from the window and
returns them at a later Fetch. The client's bytes wait while it is muted, until the broker reads again.
"""

import heapq
from collections import deque
from collections.abc import Sequence

from quota_metrics.windows import QuotaWindow, throttle_time_ms

# The number of requests into which the bytes of an interval are split, because the recording has only sums. Waiting
# Produce requests remain separate; bytes that wait for a Fetch are returned together.
REQUEST_MS = 100
GIVE_UP_MS = 120_000  # delivery.timeout.ms of Java's producer: records that wait longer fail, unless it `waits`
_MAX_QUEUE = 2_048


class ReplayedClient:
    """One client's connection to one broker: waiting bytes, and the end of its mute."""

    def __init__(self, *, fetches: bool, waits: bool = False) -> None:
        self.waiting_bytes = 0
        self.muted_until_ms = 0
        self.longest_ms = 0  # the longest throttle time
        self.delayed_bytes = 0
        self.longest_delay_ms = 0
        self.given_up_bytes = 0
        self._fetches = fetches
        self._waits = waits or fetches
        self._throttle_ms = 0
        self._queue: deque[tuple[int, int]] = deque()  # arrival time, bytes

    def arrive(self, start_ms: int, end_ms: int, byte_count: int) -> None:
        """Adds the bytes that the application had for the broker, or the broker for it, in the interval."""
        parts = max((end_ms - start_ms) // REQUEST_MS, 1)
        share, rest = divmod(byte_count, parts)
        for part in range(parts if share else min(rest, parts)):
            self._queue.append((start_ms + part * (end_ms - start_ms) // parts, share + (part < rest)))
        self.waiting_bytes += byte_count
        if len(self._queue) > _MAX_QUEUE:
            # Two entries become one under the older time, which bounds memory for a consumer that lags for hours.
            entries = list(self._queue)
            self._queue = deque(
                (entries[at][0], sum(size for _, size in entries[at : at + 2])) for at in range(0, len(entries), 2)
            )

    def throttled_ms(self, now_ms: int) -> int:
        """Muted time up to `now_ms`. A muted client sends nothing, so that its throttle times never overlap."""
        return self._throttle_ms - max(self.muted_until_ms - now_ms, 0)

    def due_ms(self) -> int:
        """When the next request is read. Bytes must be waiting."""
        return max(self._queue[0][0], self.muted_until_ms)

    def next_bytes(self, now_ms: int, most: int) -> int:
        """Bytes of the next request, or of its response, which holds at most `most`."""
        if not self._fetches:
            return self._queue[0][1]
        ready = 0
        for arrived_ms, size in self._queue:
            if arrived_ms > now_ms or ready >= most:
                break
            ready += size
        return min(ready, most)

    def hold(self, now_ms: int, throttle_ms: int) -> None:
        """The broker announced a throttle time and mutes the connection."""
        self.muted_until_ms = now_ms + throttle_ms
        self.longest_ms = max(self.longest_ms, throttle_ms)
        self._throttle_ms += throttle_ms

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
        """Drops a producer's records that waited too long; a consumer never drops any, nor who `waits`."""
        while not self._waits and self._queue and self._queue[0][0] < now_ms - GIVE_UP_MS:
            _, size = self._queue.popleft()
            self.given_up_bytes += size
            self.waiting_bytes -= size


class ReplayedQuota:
    """One quota at one broker: the rate of all clients that share it, and the bound. Time must not go backwards."""

    def __init__(self, *, fetches: bool, window: QuotaWindow) -> None:
        self.bound: float | None = None  # None: no quota
        self.peak = 0.0  # the highest rate so far / bound
        self.throttled_until_ms = 0  # the end of the last throttle time
        self._fetches = fetches
        self._rate = window.rate()
        self._full_windows_s = max(window.full_s, REQUEST_MS / 1000)  # or one sample would take a request each ms
        self._now_ms = 0

    def run(self, clients: Sequence[ReplayedClient], until_ms: int) -> None:
        """Runs all requests that are due before `until_ms`, in order of time."""
        due = [(client.due_ms(), place) for place, client in enumerate(clients) if client.waiting_bytes]
        heapq.heapify(due)
        while due and due[0][0] < until_ms:
            due_ms, place = due[0]
            client = clients[place]
            self._now_ms = max(self._now_ms, due_ms)
            client.give_up(self._now_ms)
            if client.waiting_bytes:
                self._request(client, max(self._now_ms, client.due_ms()))
            if client.waiting_bytes:
                heapq.heapreplace(due, (client.due_ms(), place))
            else:
                heapq.heappop(due)

    def _request(self, client: ReplayedClient, now_ms: int) -> None:
        self._now_ms = now_ms
        bound = self.bound
        if bound is None:
            client.sent(client.next_bytes(now_ms, client.waiting_bytes), now_ms)
            return
        # What fits into the window (ClientQuotaManager.maxValueInQuotaWindow). A broker also returns a larger batch, as
        # the first of a Fetch: sizes of batches are not recorded, so that what_if.document warns of them.
        byte_count = client.next_bytes(now_ms, max(int(bound * self._full_windows_s), 1))
        self._rate.record(byte_count, now_ms)
        rate = self._rate.measure(now_ms)
        self.peak = max(self.peak, rate / bound)
        throttle_ms = throttle_time_ms(rate, bound, self._rate.elapsed_ms(now_ms)) if rate > bound else 0
        if throttle_ms > 0:
            client.hold(now_ms, throttle_ms)
            self.throttled_until_ms = max(self.throttled_until_ms, now_ms + throttle_ms)
            if self._fetches:
                self._rate.record(-byte_count, now_ms)
                return
        client.sent(byte_count, now_ms)
