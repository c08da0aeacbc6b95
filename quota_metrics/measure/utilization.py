"""Utilisation of each quota group at each broker, as the enforcing broker computes it. Sans-I/O.

KIP-1373's definition: measured rate / effective quota, uncapped, NaN without a limit. Quotas are per broker, so the
worst broker decides, not the mean over the cluster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from exporters.model import QuotaKey, UsageSample
from quota_metrics.config.entities import CLIENT_ID, USER, desanitize, sanitize
from quota_metrics.measure.quota_manager import TYPE_OF_KEY, Quota, QuotaManager
from quota_metrics.verdict.thresholds import Thresholds
from quota_metrics.windows import UNLIMITED, QuotaWindow

# Quota key and metric tags. Clients with equal ones share a quota.
_Group: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]

_MEASURED_ON_THE_WIRE = (QuotaKey.PRODUCER_BYTE_RATE.value, QuotaKey.CONSUMER_BYTE_RATE.value)
MUTED_WINDOW_MS = 60_000  # muted time counts over the last minute

_TOKENS = QuotaKey.CONTROLLER_MUTATION_RATE.value
_REQUEST = QuotaKey.REQUEST_PERCENTAGE.value


class Utilization(NamedTuple):
    """One quota group at one broker. Rates and limits are per second and broker, or percent of one thread.

    `rate` is NaN where only throttling could be seen. `limit` is infinite where there is none, NaN where something else
    than the rules decides it.
    """

    quota_key: str
    tags: tuple[tuple[str, str], ...]
    broker_id: int
    limit: float
    rate: float
    burst_left: float  # bytes that may be recorded at once before the broker throttles; negative when it already does
    capacity_ratio: float  # of request_percentage: the share of all the broker's threads; else NaN
    throttle_ms: float
    members: tuple[UsageSample, ...]  # its known clients

    @property
    def ratio(self) -> float:
        """rate / limit, uncapped, NaN when unlimited or not known."""
        if not math.isfinite(self.limit) or math.isnan(self.rate):
            return math.nan
        if self.limit == 0:
            return math.inf if self.rate > 0 else math.nan
        return self.rate / self.limit

    @property
    def headroom(self) -> float:
        """By how much the rate may still increase."""
        return self.limit - self.rate


class ClientUtilization(NamedTuple):
    """A client at its worst broker. `rate` and `throttle_ms` are its own, the rest is shared."""

    user: str
    client_id: str
    rate: float
    throttle_ms: float
    worst: Utilization
    order: tuple[bool, float, float, int]  # sort key: greater is nearer to the limit


def utilizations(
    samples: Iterable[UsageSample],
    manager_at: Callable[[int], QuotaManager],
    window_at: Callable[[int], QuotaWindow],
    thread_capacity: Mapping[int, float],
) -> list[Utilization]:
    """Utilisation of each quota group at each broker. `manager_at` and `window_at` return a broker's quotas and its
    window; `thread_capacity`: percent.

    Samples are of one moment. The rate of a group is the sum of its clients' rates, except that the broker's own number
    (source 'jmx') has precedence, because it includes clients that bypass the gateway.
    """
    groups: dict[tuple[_Group, int], tuple[float, list[UsageSample]]] = {}
    for sample in samples:
        if sample.quota_key in TYPE_OF_KEY:
            manager = manager_at(sample.broker_id)
            if sample.source == "jmx":  # a broker's sensor is of a group, not of a client
                sensor_tags = {USER: sanitize(sample.user), CLIENT_ID: sample.client_id}
                quota = Quota(sensor_tags, manager.limit(sample.quota_key, sensor_tags))
            else:
                quota = manager.quota(sample.quota_key, sample.user, sample.client_id)
            place = ((sample.quota_key, tuple(quota.metric_tags.items())), sample.broker_id)
            limit = math.nan if sample.decided_by else quota.limit
            groups.setdefault(place, (limit, []))[1].append(sample)
    return [
        _utilization(group, broker_id, limit, members, window_at(broker_id), thread_capacity.get(broker_id, math.nan))
        for (group, broker_id), (limit, members) in groups.items()
    ]


def worst_by_client(
    all_brokers: Iterable[Utilization], muted_ms: Callable[[str, str, str, int], float] = lambda *_: 0.0
) -> list[ClientUtilization]:
    """Each client at its worst broker of this moment: where it is throttled, else nearest to its limit.

    `muted_ms`, by quota key, user, client-id and broker: how long the client was muted in the last MUTED_WINDOW_MS.
    A group that only the broker reported represents its clients, with the names in its tags.
    """
    worst: dict[tuple[str, str, str], ClientUtilization] = {}
    for at_broker in all_brokers:
        for user, client_id, rate, throttle_ms in _members(at_broker):
            place = (at_broker.quota_key, user, client_id)
            order = severity(at_broker, muted_ms(*place, at_broker.broker_id))
            if place not in worst or order > worst[place].order:
                worst[place] = ClientUtilization(user, client_id, rate, throttle_ms, at_broker, order)
    return list(worst.values())


def severity(utilization: Utilization, muted_ms: float = 0.0) -> tuple[bool, float, float, int]:
    """Sort key of brokers; the worst is the greatest."""
    ratio = -1.0 if math.isnan(utilization.ratio) else utilization.ratio
    throttled = muted_ms > 0 and muted_ms >= Thresholds().muted_share * MUTED_WINDOW_MS
    return throttled, ratio, muted_ms, -utilization.broker_id


def burst_left(limit: float, rate: float, window: QuotaWindow) -> float:
    """maxValueInQuotaWindow less the content of the window: limit x (samples - 1) x window, ClientQuotaManager's bound.

    The window contains at least rate x (samples - 1) x window, and up to a fifth more while its oldest sample expires.
    """
    return (limit - rate) * window.full_s


def _members(group: Utilization) -> Iterator[tuple[str, str, float, float]]:
    measured = group.quota_key in _MEASURED_ON_THE_WIRE
    for sample in group.members:
        yield sample.user, sample.client_id, sample.rate if measured else math.nan, sample.throttle_ms
    if not group.members:
        names = dict(group.tags)
        yield desanitize(names.get(USER, "")), names.get(CLIENT_ID, ""), group.rate, group.throttle_ms


def _utilization(
    group: _Group, broker_id: int, limit: float, samples: list[UsageSample], window: QuotaWindow, capacity: float
) -> Utilization:
    quota_key, tags = group
    limit = math.inf if limit >= UNLIMITED else limit
    by_broker = [sample.rate for sample in samples if sample.source == "jmx"]
    rate = math.nan
    if by_broker:
        rate = by_broker[-1]
    elif quota_key in _MEASURED_ON_THE_WIRE:
        rate = sum(sample.rate for sample in samples)
    return Utilization(
        quota_key,
        tags,
        broker_id,
        limit,
        rate,
        math.nan if quota_key == _TOKENS else burst_left(limit, rate, window),
        rate / capacity if quota_key == _REQUEST else math.nan,
        max(sample.throttle_ms for sample in samples),
        tuple(sample for sample in samples if sample.source != "jmx"),
    )
