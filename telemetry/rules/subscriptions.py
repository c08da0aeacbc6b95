"""Merges the subscriptions that match a client: which metrics it is asked for, and how often. Sans-I/O.

Source: ClientMetricsManager.createClientInstance. The subscription id is computed from all prefixes in Java's order, so
that it equals a broker's; the list sent to the client omits prefixes that another prefix covers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cachetools import LRUCache

from telemetry.rules.java.hash import ConcurrentMapKeys, hash_set, hash_set_of, subscription_crc
from telemetry.rules.subscription_config import ALL_METRICS, DEFAULT_INTERVAL_MS, Subscription

MIN_LIFETIME_MS: Final = 60_000
_MAX_CACHED: Final = 4096

Attributes = Mapping[str, str | None]  # match key -> the client's value, None where it has none


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The merged subscriptions of all clients that the same set of subscriptions matches."""

    metrics: tuple[str, ...]  # as in a broker's set
    requested_metrics: tuple[str, ...]  # as it is sent
    interval_ms: int
    crc: int  # what the ids of all their subscriptions are made from
    lifetime_ms: int  # of an instance that is silent

    def spelled(self, all_metrics: str) -> tuple[str, ...]:
        """`requested_metrics` for a client that spells "all metrics" as `all_metrics`."""
        return (all_metrics,) if self.requested_metrics == (ALL_METRICS,) else self.requested_metrics


class Subscriptions:
    """The subscriptions of a cluster. `version` grows with each change."""

    def __init__(self) -> None:
        self.version = 0
        self._by_name: dict[str, Subscription] = {}
        self._names = ConcurrentMapKeys()
        self._selections: LRUCache[tuple[str, ...], Selection] = LRUCache(_MAX_CACHED)

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[str]:
        """The names, in the order in which a broker lists them."""
        return iter(self._names)

    def change(self, put: Sequence[Subscription], remove: Sequence[str] = ()) -> None:
        """Adds, replaces and removes in one change. Raises KeyError when a name to remove does not exist."""
        for name in remove:
            del self._by_name[name]
            self._names.remove(name)
        for subscription in put:
            self._by_name[subscription.name] = subscription
            self._names.put(subscription.name)
        self._selections.clear()
        self.version += 1

    def select(self, attributes: Attributes) -> Selection:
        """The merged subscriptions that match a client with these attributes."""
        names = tuple(name for name in self._names if is_match(self._by_name[name], attributes))
        selection = self._selections.get(names)
        if selection is None:
            selection = self._selections[names] = _merged([self._by_name[name] for name in names])
        return selection


def is_match(subscription: Subscription, attributes: Attributes) -> bool:
    """Whether all criteria match; a missing attribute matches none (ClientMetricsInstanceMetadata.isMatch)."""
    for key, pattern in subscription.match.items():
        subject = attributes.get(key)
        if subject is None or not pattern.matches(subject):
            return False
    return True


def without_covered(prefixes: Sequence[str]) -> tuple[str, ...]:
    """`prefixes` without those that another prefix covers."""
    kept: set[str] = set()
    last: str | None = None
    for prefix in sorted(prefixes):
        if last is None or not prefix.startswith(last):
            kept.add(prefix)
            last = prefix
    return tuple(prefix for prefix in prefixes if prefix in kept)


def _merged(subscriptions: Sequence[Subscription]) -> Selection:
    """The shortest interval applies; the default is always included (createClientInstance)."""
    interval_ms = min([DEFAULT_INTERVAL_MS, *(subscription.interval_ms for subscription in subscriptions)])
    sets = (hash_set_of(subscription.metrics) for subscription in subscriptions)
    metrics = tuple(hash_set(itertools.chain.from_iterable(sets)))
    if ALL_METRICS in metrics:
        metrics = (ALL_METRICS,)
    lifetime_ms = max(MIN_LIFETIME_MS, 3 * interval_ms)
    crc = subscription_crc(metrics, interval_ms)
    return Selection(metrics, without_covered(metrics), interval_ms, crc, lifetime_ms)
