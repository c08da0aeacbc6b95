"""The outcome of other quotas for each recorded client: throttled or not, for how long, and in words. Sans-I/O.

Clients that share a limit at a broker are replayed together (replay.py) when the change affects them and their usage
may come to the new limit; for others the outcome is known without a replay. Clients are independent otherwise: a
consumer reads the recorded bytes even if its producer would have been slower.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from exporters.model import DEFAULT_ENTITY, QuotaKey, QuotaLimit
from quota_metrics.config.entities import QuotaAlteration, text
from quota_metrics.config.resolution import Resolution
from quota_metrics.config.timeline import Epoch, Pair, bucket_key, epochs
from quota_metrics.simulation.group import ReplayedGroup
from quota_metrics.simulation.replay import GIVE_UP_MS
from quota_metrics.simulation.usage import NOTHING, BrokerWindows, ClientAtBroker, Recorded
from quota_metrics.verdict.client_signals import LOSES_NOTHING_BY_WAITING

# For other quotas the gateway sees the throttling but not the usage.

# Observed: of two equal consumers one was throttled all the time and the other never. A throttled fetch has more to
# return at each retry, while the other's small fetches keep the window full.
_CHANCE = "which of the consumers that share it are throttled is random, it may be a single one"


class Seen(NamedTuple):
    """A recorded client and its maxima: the highest window rate, the most bytes in an interval, the shortest
    interval."""

    client: ClientAtBroker
    rate_max: float
    bytes_max: int
    interval_ms: int = 1000


@dataclass(slots=True)
class Side:
    """Before or after the change. `rule`: at the end of the recording."""

    rule: Resolution | None = None
    throttled_ms: float = 0.0
    throttle_ms_max: float = 0.0


@dataclass(slots=True)
class ClientOutcome:
    client: ClientAtBroker
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


class Simulation:
    """`groups` says whose usage is needed; `replay` each of them; then `outcomes`.

    `history`: rows of quota_limits of one cluster; `seen`: its clients in (from_ms, to_ms]. The alterations are made
    together, at the beginning. Memory: some kilobytes for each client, and the usage of one group.
    """

    def __init__(
        self,
        history: Sequence[QuotaLimit],
        alterations: Sequence[QuotaAlteration],
        seen: Sequence[Seen],
        *,
        from_ms: int,
        to_ms: int,
        windows: BrokerWindows = BrokerWindows({}),
    ) -> None:
        self._windows = windows
        self._from_ms = from_ms
        self._runs = {client.client: _Run(client.client) for client in seen}
        pairs = {run.pair for run in self._runs.values()}
        users = {"", DEFAULT_ENTITY, *(user for _, user, _ in pairs)}
        client_ids = {"", DEFAULT_ENTITY, *(client_id for _, _, client_id in pairs)}
        rules = [row for row in history if row.user in users and row.client_id in client_ids and not row.ip]
        self._epochs: list[Epoch] = []  # in which a client's quota differs from the epoch before
        for epoch in epochs(rules, alterations, pairs, from_ms):
            if not self._epochs or epoch.quotas != self._epochs[-1].quotas:
                self._epochs.append(epoch)
        self._epoch_ends_ms = [*(epoch.since_ms for epoch in self._epochs[1:]), to_ms]
        self._peak_rates = {client.client: self._peak_rate(client) for client in seen}
        self.groups = self._mark_affected()
        self.skipped: list[ClientAtBroker] = []

    def replay(
        self, group: Sequence[ClientAtBroker], usage: Mapping[ClientAtBroker, Recorded], most_requests: int = 2**62
    ) -> int:
        """Replays one of `groups`, which are each at one broker; returns the number of replayed requests. When it takes
        more than `most_requests`, it is skipped."""
        runs = [self._runs[client] for client in group]
        replayed = ReplayedGroup(
            [usage.get(client, NOTHING) for client in group],
            [LOSES_NOTHING_BY_WAITING.search(client.client_id) is not None for client in group],
            fetches=runs[0].outcome.client.quota_key == QuotaKey.CONSUMER_BYTE_RATE,
            window=self._windows.at(group[0].broker_id).window,
        )
        # In each epoch, for each client: the quota that it shares with others, and the bound; None: no limit.
        limits: list[list[tuple[object, float | None]]] = []
        for epoch in self._epochs:
            rules = [(run.pair, epoch.quotas[run.pair].after) for run in runs]
            limits.append([(bucket_key(pair, rule), None if rule is None else rule.value) for pair, rule in rules])
        bounds = [bound for limited in limits for _, bound in limited if bound is not None]
        replayed.expect(min(bounds, default=None))
        for limited, end_ms in zip(limits, self._epoch_ends_ms, strict=True):
            if not replayed.run(limited, end_ms, most_requests):
                self.skip(group)
                return replayed.requests
        for run, client, throttled_ms in zip(runs, replayed.clients, replayed.throttled_ms, strict=True):
            run.replayed_ms, run.longest_ms = throttled_ms, client.longest_ms
            outcome = run.outcome
            outcome.delayed_bytes, outcome.delay_ms_max = client.delayed_bytes, client.longest_delay_ms
            outcome.waiting_bytes, outcome.given_up_bytes = client.waiting_bytes, client.given_up_bytes
            if replayed.peak is not None:
                outcome.peak = replayed.peak
        return replayed.requests

    def skip(self, group: Iterable[ClientAtBroker]) -> None:
        for client in group:
            self._runs.pop(client, None)
            self.skipped.append(client)

    def throttled(self, usage: Mapping[ClientAtBroker, Recorded]) -> None:
        """The recorded rows of clients, of each at least those with a throttle time or muted time."""
        spans = list(zip([self._from_ms, *self._epoch_ends_ms], self._epoch_ends_ms, strict=False))
        for client, rows in usage.items():
            run = self._runs.get(client)
            if run is not None:  # usage may have arrived after `seen` was read
                of_epochs = [rows.until(*span) for span in spans]
                run.recorded = [
                    (float(part.muted_ms.sum()), float(part.throttle_ms.max(initial=0.0))) for part in of_epochs
                ]

    def outcomes(self) -> list[ClientOutcome]:
        """One outcome for each client that was seen, apart from the skipped ones. Once."""
        for number, epoch in enumerate(self._epochs):
            for run in self._runs.values():
                if run.recorded or run.replayed_ms:
                    run.settle(number, may_use_more=epoch.may_use_more(run.pair))
        newest = self._epochs[-1]
        for run in self._runs.values():
            run.outcome.before.rule, run.outcome.after.rule = newest.quotas[run.pair]
            key = bucket_key(run.pair, run.outcome.after.rule)
            run.outcome.shared_with = len(newest.groups[key]) - 1 if key else 0
        return [run.outcome for run in self._runs.values()]

    def _peak_rate(self, seen: Seen) -> float:
        """An upper bound of the client's rate. With the recorded window: between two rows, the measured bytes may be
        divided by one sample less, and the bytes of an interval may arrive at once. With another window: as if every
        interval were the largest."""
        window, is_recorded = self._windows.at(seen.client.broker_id)
        if is_recorded:
            return (seen.rate_max * window.length_ms / 1000 + seen.bytes_max) / window.full_s
        return seen.bytes_max * (window.length_ms / seen.interval_ms + 2) / window.full_s

    def _mark_affected(self) -> list[list[ClientAtBroker]]:
        """Marks the affected clients. Returns the groups of clients that share a limit at a broker at any time and may
        come to it together."""
        runs: dict[Pair, list[_Run]] = defaultdict(list)
        for run in self._runs.values():
            runs[run.pair].append(run)
        joined = _Joined()
        replayed: set[ClientAtBroker] = set()
        for epoch in self._epochs:
            affected = epoch.affected()
            for pair in affected:
                for run in runs[pair]:
                    run.outcome.affected = True
                    run.outcome.may_use_more |= epoch.may_use_more(pair)
            for pairs in epoch.groups.values():
                if affected.isdisjoint(pairs):
                    continue
                rule = epoch.quotas[next(iter(pairs))].after
                assert rule is not None
                at_broker: dict[int, list[_Run]] = defaultdict(list)
                for run in (run for pair in pairs for run in runs[pair]):
                    at_broker[run.outcome.client.broker_id].append(run)
                for group in at_broker.values():
                    clients = [run.outcome.client for run in group]
                    joined.join(clients)
                    peak = sum(self._peak_rates[client] for client in clients) / rule.value
                    for run in group:
                        run.outcome.peak = max(run.outcome.peak, peak)
                    if peak > 1:
                        replayed.update(clients)
        return [group for group in joined.groups() if not replayed.isdisjoint(group)]


class _Run:
    """One client: its recorded and its replayed throttling in each epoch."""

    def __init__(self, client: ClientAtBroker) -> None:
        self.outcome = ClientOutcome(client)
        self.pair: Pair = (client.quota_key, client.user, client.client_id)
        self.recorded: list[tuple[float, float]] = []  # muted ms and longest throttle time in each epoch
        self.replayed_ms: list[int] = []  # likewise, without a replay empty
        self.longest_ms = 0

    def settle(self, epoch: int, *, may_use_more: bool) -> None:
        """Adds the throttled time of an epoch. A throttled client wanted to send more than was recorded: unless it may
        use more after the change, it is throttled for at least as long."""
        before, after = self.outcome.before, self.outcome.after
        recorded_ms, recorded_longest_ms = self.recorded[epoch] if self.recorded else (0.0, 0.0)
        replayed_ms = self.replayed_ms[epoch] if self.replayed_ms else 0
        before.throttled_ms += recorded_ms
        before.throttle_ms_max = max(before.throttle_ms_max, recorded_longest_ms)
        after.throttled_ms += replayed_ms if may_use_more else max(recorded_ms, replayed_ms)
        after.throttle_ms_max = max(after.throttle_ms_max, self.longest_ms, 0 if may_use_more else recorded_longest_ms)


class _Joined:
    """Clients that share a limit, directly or by way of others."""

    def __init__(self) -> None:
        self._group_of: dict[ClientAtBroker, list[ClientAtBroker]] = {}

    def join(self, clients: Iterable[ClientAtBroker]) -> None:
        groups = {id(group): group for group in (self._group_of.get(client, [client]) for client in clients)}
        biggest, *others = sorted(groups.values(), key=len, reverse=True)
        for group in others:
            biggest.extend(group)
        self._group_of.update(dict.fromkeys(biggest, biggest))

    def groups(self) -> list[list[ClientAtBroker]]:
        return list({id(group): group for group in self._group_of.values()}.values())


class OutcomeKind(StrEnum):
    """Kinds of outcomes, in the order of the output."""

    NEWLY = "newly throttled"
    STILL = "still throttled"
    FREED = "freed"
    UNCHANGED = "unchanged"


def verdict(outcome: ClientOutcome) -> OutcomeKind:
    """Whether the client is throttled at all, before and after. Clients that are not affected are unchanged."""
    if not outcome.affected:
        return OutcomeKind.UNCHANGED
    if outcome.after.throttled_ms > 0:
        return OutcomeKind.STILL if outcome.before.throttled_ms > 0 else OutcomeKind.NEWLY
    return OutcomeKind.FREED if outcome.before.throttled_ms > 0 else OutcomeKind.UNCHANGED


def reason(outcome: ClientOutcome) -> str:
    """The reason of the verdict, and how certain it is."""
    if not outcome.affected:
        return "the change does not affect it"
    match verdict(outcome):
        case OutcomeKind.UNCHANGED:
            if outcome.after.rule is None:
                return "no quota applies"
            if outcome.peak > 1 and outcome.shared_with:
                return f"others are throttled by {_limit(outcome)}: {_CHANCE}"
            return f"never above {outcome.peak:.0%} of {_limit(outcome)}"
        case OutcomeKind.FREED:
            if outcome.after.rule is None:
                return "no quota applies any more"
            return (
                f"the recorded usage fits: never above {outcome.peak:.0%} of {_limit(outcome)}; it was throttled, so it"
                " wanted more: it would use all of the new limit, or an unknown part of it"
            )
        case _:
            return "; ".join(_reasons_of_throttled(outcome))


def worst_first(outcomes: list[ClientOutcome]) -> list[ClientOutcome]:
    """Sort key: by verdict, the longest throttled first, unaffected clients last."""
    order = list(OutcomeKind)
    return sorted(
        outcomes,
        key=lambda outcome: (
            order.index(verdict(outcome)),
            not outcome.affected,
            -outcome.after.throttled_ms,
            -outcome.before.throttled_ms,
            -outcome.peak,
            outcome.client,
        ),
    )


def _reasons_of_throttled(outcome: ClientOutcome) -> Iterator[str]:
    if outcome.after.rule is None:
        yield "throttled by another quota, as before"
        return
    yield f"comes to {_limit(outcome)}"
    if outcome.shared_with and outcome.client.quota_key == QuotaKey.CONSUMER_BYTE_RATE:
        yield _CHANCE
    if outcome.delayed_bytes:
        yield f"{outcome.delayed_bytes} bytes late by up to {outcome.delay_ms_max / 1000:.1f} s"
    if outcome.waiting_bytes:
        yield f"{outcome.waiting_bytes} bytes still waiting at the end"
    if outcome.given_up_bytes:
        yield f"{outcome.given_up_bytes} bytes wait over {GIVE_UP_MS // 1000} s, Java's delivery.timeout.ms, and fail"
    if outcome.before.throttled_ms > 0:
        yield "at least this long: it was throttled, so it wanted more than was recorded"


def _limit(outcome: ClientOutcome) -> str:
    rule = outcome.after.rule
    assert rule is not None
    shared = f" that it shares with {outcome.shared_with} more" if outcome.shared_with else ""
    return f"{rule.value:.0f} bytes/s of {text(rule.entity)}{shared}"
