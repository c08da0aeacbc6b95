"""Replays the usage of clients that share a limit at a broker, and skips the time in which they cannot come to it."""

from collections.abc import Hashable, Sequence

import numpy as np

from quota_metrics.simulation.replay import REQUEST_MS, ReplayedClient, ReplayedQuota
from quota_metrics.simulation.usage import Arrivals, Recorded
from quota_metrics.windows import QuotaWindow

_STEP_MS = 30_000  # of usage that is replayed at a time
_NEVER = -(2**62)


class ReplayedGroup:
    """`expect` once, then `run` for each part of the time. `clients`: in the order of the usages; `throttled_ms`: of
    each client in each part. `waits`: whose records never expire."""

    def __init__(self, usages: Sequence[Recorded], waits: list[bool], *, fetches: bool, window: QuotaWindow) -> None:
        self.requests = 0
        self.clients = [ReplayedClient(fetches=fetches, waits=of_client) for of_client in waits]
        self.throttled_ms: list[list[int]] = [[] for _ in usages]
        self._arrivals = Arrivals(usages)
        self._fetches = fetches
        self._window = window
        # A window that is as long holds nothing of what came before it.
        self._tail_ms = (window.samples + 2) * window.window_ms
        self._wanted = np.zeros(0, np.int64)
        self._expected: float | None = None
        self._quotas: dict[Hashable, ReplayedQuota] = {}
        self._place = 0
        self._requests_of = (self._arrivals.ts_ms - self._arrivals.start_ms) // REQUEST_MS + 1

    @property
    def peak(self) -> float | None:
        """The highest rate that was replayed, or may have come without a replay, by the limit."""
        replayed = max((quota.peak for quota in self._quotas.values()), default=0.0)
        return replayed or self._expected

    def expect(self, bound: float | None) -> None:
        """The lowest limit that any of them will have: rows count that may come to it, and those up to a window
        before."""
        arrivals = self._arrivals
        if bound is None or not len(arrivals):
            return
        peaks = arrivals.peaks(self._window) / bound
        self._expected = float(peaks.max())
        hot = np.flatnonzero(peaks > 1 - 1e-9)
        first = np.searchsorted(arrivals.ts_ms, arrivals.start_ms[hot] - self._tail_ms)
        marks = np.zeros(len(arrivals) + 1, np.int64)
        np.add.at(marks, first, 1)
        np.add.at(marks, hot + 1, -1)
        self._wanted = np.flatnonzero(np.cumsum(marks[:-1]) > 0)

    def run(self, limits: Sequence[tuple[Hashable, float | None]], end_ms: int, most_requests: int) -> bool:
        """Up to `end_ms` under the limits of the clients: which quota, and its bound. False when it takes more than
        `most_requests`."""
        # A sensor lives as long as its tags, even when the limit changes.
        clients_by_quota: dict[Hashable, list[ReplayedClient]] = {}
        for client, (key, bound) in zip(self.clients, limits, strict=True):
            if key not in self._quotas:
                self._quotas[key] = ReplayedQuota(fetches=self._fetches, window=self._window)
            self._quotas[key].bound = bound
            clients_by_quota.setdefault(key, []).append(client)
        members = [(self._quotas[key], clients) for key, clients in clients_by_quota.items()]
        arrivals = self._arrivals
        columns = (arrivals.member, arrivals.start_ms, arrivals.ts_ms, arrivals.bytes)
        end = int(np.searchsorted(arrivals.ts_ms, end_ms, side="right"))
        while (stop := self._find_next(end)) is not None:
            part = (column[self._place : stop].tolist() for column in columns)
            for member, start_ms, ts_ms, size in zip(*part, strict=True):
                if size > 0:
                    self.clients[member].arrive(start_ms, ts_ms, size)
            self.requests += int(self._requests_of[self._place : stop].sum())
            self._place = stop
            if self.requests > most_requests:
                return False
            following = int(arrivals.next_start_ms[stop]) if stop < len(arrivals) else end_ms
            for quota, clients in members:
                quota.run(clients, min(following, end_ms))
        for quota, clients in members:
            quota.run(clients, end_ms)
        for client, throttled_ms in zip(self.clients, self.throttled_ms, strict=True):
            client.give_up(end_ms)
            throttled_ms.append(client.throttled_ms(end_ms) - sum(throttled_ms))
        return True

    def _find_next(self, end: int) -> int | None:
        """Moves `_place` to the rows to replay next, and returns their end; None: there are no more before `end`."""
        ts_ms = self._arrivals.ts_ms
        # While bytes wait, or a window holds bytes that came late, no row is skipped.
        throttled_until_ms = max((quota.throttled_until_ms for quota in self._quotas.values()), default=_NEVER)
        has_waiting = any(client.waiting_bytes for client in self.clients)
        if self._place < end and not has_waiting and ts_ms[self._place] > throttled_until_ms + self._tail_ms:
            after = int(np.searchsorted(self._wanted, self._place))
            self._place = min(int(self._wanted[after]) if after < len(self._wanted) else end, end)
        if self._place >= end:
            return None
        return min(int(np.searchsorted(ts_ms, ts_ms[self._place] + _STEP_MS)), end)
