"""The outcome of other quotas for each recorded client: throttled or not, and for how long. Sans-I/O.

A client is replayed (replay.py) when the change affects its limit or the clients that share it, and their usage may
reach the new limit; for others the outcome is known without a replay. Clients are independent: a consumer reads the
recorded bytes even if its producer would have been slower.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple, TypeAlias

from exporters.model import QuotaKey, QuotaLimit, UsageSample
from quota_metrics.config.entities import Alteration
from quota_metrics.config.resolution import Resolution
from quota_metrics.config.timeline import BucketKey, Epoch, Pair, bucket_key, epochs
from quota_metrics.simulation.replay import Bucket, Sender, Throttling

# For other quotas the gateway sees the throttling but not the usage.
KEYS = (QuotaKey.PRODUCER_BYTE_RATE.value, QuotaKey.CONSUMER_BYTE_RATE.value)
_Sensor: TypeAlias = tuple[BucketKey | None, bool, int]  # bucket (None: no limit), whether it fetches, broker

_STALL = 2.5  # in intervals: rows further apart are not of successive intervals


class Client(NamedTuple):
    """A client at a broker, for one quota key."""

    quota_key: str
    user: str
    client_id: str
    broker_id: int


class Seen(NamedTuple):
    """A recorded client and its maxima: the highest window rate, the most bytes in an interval."""

    client: Client
    rate_max: float
    bytes_max: int


class Window(NamedTuple):
    """quota.window.num and quota.window.size of the brokers; the defaults are those of recorded rates."""

    samples: int = 11
    window_ms: int = 1000


@dataclass(slots=True)
class Side:
    """Before or after the change. `rule`: at the end of the recording."""

    rule: Resolution | None = None
    throttled_ms: float = 0.0
    throttle_ms_max: float = 0.0


@dataclass(slots=True)
class Outcome:
    """The effect of the change on one client at one broker."""

    client: Client
    before: Side = field(default_factory=Side)
    after: Side = field(default_factory=Side)
    affected: bool = False  # its limit changes, or the set of clients that share it
    may_use_more: bool = False  # it may use more than before
    peak: float = 0.0  # the rate of all that share the new limit, by that limit: what it never exceeds
    shared_with: int = 0  # other clients, under the new limit
    delayed_bytes: int = 0
    delay_ms_max: int = 0
    waiting_bytes: int = 0  # at the end
    given_up_bytes: int = 0  # waited longer than a producer does (replay.GIVE_UP_MS)


class WhatIf:
    """`names` says whose usage is needed; `replay` it; then `outcomes`.

    `history`: rows of quota_limits of one cluster; `seen`: its clients in (from_ms, to_ms]; `usual_ms`: the interval of
    their usage. Memory: some kilobytes for each client, however long the recording.
    """

    def __init__(
        self,
        history: Sequence[QuotaLimit],
        alteration: Alteration,
        seen: Sequence[Seen],
        *,
        from_ms: int,
        to_ms: int,
        usual_ms: int = 1000,
        window: Window = Window(),
    ) -> None:
        self._history = history
        self._alteration = alteration
        self._from_ms = from_ms
        self._to_ms = to_ms
        self._usual_ms = usual_ms
        self._window = window
        self._now_ms = from_ms
        self._runs = {client: _Run(client, from_ms) for client, _, _ in seen}
        self._replayed_runs: list[_Run] = []
        self._buckets: dict[_Sensor, Bucket] = {}
        self._members: dict[_Sensor, list[Sender]] = {}
        self._plan({client: self._peak_rate(rate, most) for client, rate, most in seen})

    @property
    def names(self) -> tuple[set[str], set[str]]:
        """Users and client-ids of the replayed clients. For others only throttled rows are needed."""
        return {run.pair[1] for run in self._replayed_runs}, {run.pair[2] for run in self._replayed_runs}

    def replay(self, samples: Iterable[UsageSample]) -> None:
        """All usage, in the order of ts_ms."""
        coming = self._epochs()
        epoch, following = next(coming), next(coming, None)
        self._enter(epoch)
        for ts_ms, rows in groupby(samples, key=lambda sample: sample.ts_ms):
            while following is not None and following.since_ms < ts_ms:
                self._leave(epoch, following.since_ms)
                epoch, following = following, next(coming, None)
                self._enter(epoch)
            if ts_ms - self._now_ms > _STALL * self._usual_ms:
                self._run_until(ts_ms - self._usual_ms)
            for sample in rows:
                self._take(sample)
            self._step(ts_ms)
        self._leave(epoch, self._to_ms)

    def outcomes(self) -> list[Outcome]:
        """One outcome for each client that was seen."""
        return [run.finished() for run in self._runs.values()]

    def _epochs(self) -> Iterator[Epoch]:
        pairs = {run.pair for run in self._runs.values()}
        return epochs(self._history, self._alteration, pairs, self._from_ms)

    def _peak_rate(self, rate_max: float, bytes_max: int) -> float:
        """An upper bound of the client's rate. With the recorded window: between two rows, the measured bytes may be
        divided by one sample less, and the bytes of an interval may arrive at once. With another window: as if every
        interval were the largest."""
        samples, window_ms = self._window
        full_s = (samples - 1) * window_ms / 1000
        if self._window == Window():
            return rate_max * samples / (samples - 1) + bytes_max / full_s
        return bytes_max * (samples * window_ms / self._usual_ms + 2) / full_s

    def _plan(self, at_most: dict[Client, float]) -> None:
        """Marks the affected clients and those to replay."""
        runs = _by_pair(self._runs.values())
        for epoch in self._epochs():
            affected = epoch.affected()
            for pair in affected:
                for run in runs[pair]:
                    run.outcome.affected = True
                    run.outcome.may_use_more |= epoch.may_use_more(pair)
            for pairs in epoch.groups.values():
                if not affected.isdisjoint(pairs):
                    rule = epoch.quotas[next(iter(pairs))].after
                    assert rule is not None
                    self._mark_replayed([run for pair in pairs for run in runs[pair]], rule.value, at_most)
        self._replayed_runs = [run for run in self._runs.values() if run.is_replayed]

    def _mark_replayed(self, group: Iterable[_Run], limit: float, at_most: dict[Client, float]) -> None:
        """Marks clients for replay if they, together with the clients that share the limit, may reach it at a
        broker."""
        for runs in _by_broker(group):
            peak = sum(at_most[run.outcome.client] for run in runs) / limit
            for run in runs:
                run.is_replayed |= peak > 1
                run.outcome.peak = max(run.outcome.peak, peak)

    def _enter(self, epoch: Epoch) -> None:
        """Applies the epoch's limits. A sensor lives as long as its tags, even when the limit changes."""
        self._members = {}
        for run in self._runs.values():
            before, after = epoch.quotas[run.pair]
            run.outcome.before.rule, run.outcome.after.rule = before, after
            key = bucket_key(run.pair, after)
            run.outcome.shared_with = len(epoch.groups[key]) - 1 if key else 0
            if run.is_replayed:
                sensor = (key, run.fetches, run.outcome.client.broker_id)
                self._members.setdefault(sensor, []).append(run.sender)
                if sensor not in self._buckets:
                    self._buckets[sensor] = Bucket(fetches=run.fetches, **self._window._asdict())
                run.bucket = self._buckets[sensor]
                run.bucket.bound = None if after is None else after.value

    def _leave(self, epoch: Epoch, now_ms: int) -> None:
        self._run_until(now_ms)
        for run in self._runs.values():
            run.settle(now_ms, may_use_more=epoch.may_use_more(run.pair))

    def _run_until(self, until_ms: int) -> None:
        """Continues without new usage while bytes wait or clients are muted."""
        while self._now_ms < until_ms and any(run.busy for run in self._replayed_runs):
            self._step(min(self._now_ms + self._usual_ms, until_ms))
        self._now_ms = max(self._now_ms, until_ms)

    def _take(self, sample: UsageSample) -> None:
        run = self._runs.get(Client(sample.quota_key, sample.user, sample.client_id, sample.broker_id))
        if run is not None:  # ignores usage that arrived after `seen` was read
            run.take(sample, self._usual_ms)

    def _step(self, now_ms: int) -> None:
        """Advances the replay to `now_ms`."""
        for sensor, senders in self._members.items():
            self._buckets[sensor].run(senders, now_ms)
        for run in self._replayed_runs:
            run.step(now_ms)
        self._now_ms = now_ms


class _Run:
    """One client: its recorded and its replayed throttling."""

    def __init__(self, client: Client, from_ms: int) -> None:
        self.outcome = Outcome(client)
        self.pair: Pair = (client.quota_key, client.user, client.client_id)
        self.fetches = client.quota_key == QuotaKey.CONSUMER_BYTE_RATE
        self.is_replayed = False  # may reach its new limit, so it is replayed
        self.sender = Sender(fetches=self.fetches, start_ms=from_ms)
        self.bucket: Bucket | None = None
        self._recorded = Throttling(from_ms)
        self._replayed = self.sender.throttling
        self._settled_ms = (0.0, 0.0)
        self._last_ms = 0

    @property
    def busy(self) -> bool:
        return self.sender.waiting_bytes > 0 or not self._replayed.over

    def take(self, sample: UsageSample, usual_ms: int) -> None:
        """Adds a row, which covers the time since the previous row if that is adjacent."""
        gap_ms, self._last_ms = sample.ts_ms - self._last_ms, sample.ts_ms
        interval_ms = gap_ms if gap_ms <= _STALL * usual_ms else usual_ms
        self._recorded.add(sample)
        if self.is_replayed:
            self.sender.arrive(sample.ts_ms - interval_ms, sample.ts_ms, sample.bytes)

    def step(self, now_ms: int) -> None:
        """The replay has reached `now_ms`."""
        self._replayed.advance(now_ms)
        self.sender.give_up(now_ms)

    def settle(self, now_ms: int, *, may_use_more: bool) -> None:
        """Adds up the throttled time at the end of an epoch. A throttled client wanted to send more than was recorded:
        unless it may use more after the change, it is throttled for at least as long."""
        self._recorded.advance(now_ms)
        recorded_ms = self._recorded.total_ms - self._settled_ms[0]
        replayed_ms = self._replayed.total_ms - self._settled_ms[1]
        self._settled_ms = (self._recorded.total_ms, self._replayed.total_ms)
        after = self.outcome.after
        after.throttled_ms += replayed_ms if may_use_more else max(recorded_ms, replayed_ms)
        longest_ms = (self._replayed.longest_ms, 0 if may_use_more else self._recorded.longest_ms)
        after.throttle_ms_max = max(after.throttle_ms_max, *longest_ms)

    def finished(self) -> Outcome:
        outcome, sender = self.outcome, self.sender
        outcome.before.throttled_ms = self._recorded.total_ms
        outcome.before.throttle_ms_max = self._recorded.longest_ms
        outcome.delayed_bytes, outcome.delay_ms_max = sender.delayed_bytes, sender.longest_delay_ms
        outcome.waiting_bytes, outcome.given_up_bytes = sender.waiting_bytes, sender.given_up_bytes
        if self.bucket is not None:
            outcome.peak = self.bucket.peak
        return outcome


def _by_pair(runs: Iterable[_Run]) -> dict[Pair, list[_Run]]:
    found: dict[Pair, list[_Run]] = defaultdict(list)
    for run in runs:
        found[run.pair].append(run)
    return found


def _by_broker(runs: Iterable[_Run]) -> Iterable[list[_Run]]:
    found: dict[int, list[_Run]] = defaultdict(list)
    for run in runs:
        found[run.outcome.client.broker_id].append(run)
    return found.values()
