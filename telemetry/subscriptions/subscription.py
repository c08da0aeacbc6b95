"""Subscriptions: parses and validates one CLIENT_METRICS resource as Kafka does, and merges those that match a client.

Sans-I/O. Source, in Kafka 4.3: ControllerConfigurationValidator and ClientMetricsConfigs (4.2 and later refuse blank
list elements), whose codes and messages are kept, and ClientMetricsManager.createClientInstance. The subscription id
is computed from all prefixes in Java's order, so that it equals a broker's; the list sent to the client omits prefixes
that another prefix covers.
"""

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cachetools import LRUCache

from telemetry.subscriptions.java.hash import ConcurrentMapKeys, hash_set, hash_set_of
from telemetry.subscriptions.java.regex import JavaPattern
from telemetry.subscriptions.subscription_id import subscription_crc
from telemetry.wire.errors import ErrorCode, InvalidSubscriptionError, JavaPatternError, UntranslatableError

METRICS: Final = "metrics"
INTERVAL_MS: Final = "interval.ms"
MATCH: Final = "match"
DEFAULTS: Final = {METRICS: "", INTERVAL_MS: "300000", MATCH: ""}  # in the order in which ConfigDef parses them

DEFAULT_INTERVAL_MS: Final = 300_000
MIN_INTERVAL_MS: Final = 100
MAX_INTERVAL_MS: Final = 3_600_000
ALL_METRICS: Final = "*"  # a list element of its own, not a wildcard

MATCH_KEYS: Final = frozenset(
    {
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    }
)
EXTRA_MATCH_KEYS: Final = MATCH_KEYS | {"principal", "listener", "cluster"}  # additional keys of Headroom

_MAX_VALUE_BYTES = 32_767
_TRIMMED = "".join(map(chr, range(0x21)))  # the characters that String.trim() removes
_COMMA = re.compile(r"\s*,\s*", re.ASCII)
_INT = re.compile(r"[+-]?\d+")
MIN_LIFETIME_MS: Final = 60_000
_MAX_CACHED: Final = 4096

Attributes = Mapping[str, str | None]  # match key -> the client's value, None where it has none


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription: all of `match` must match, `metrics` are name prefixes or ALL_METRICS."""

    name: str
    metrics: tuple[str, ...]
    interval_ms: int
    match: Mapping[str, JavaPattern]


def parse_subscription(
    name: str, values: Mapping[str, str | None], match_keys: Collection[str] = MATCH_KEYS
) -> Subscription:
    """Builds a subscription from the set keys and the defaults of the others.

    `match_keys`: the attributes that clients may be matched by; a broker supports MATCH_KEYS only.
    Raises InvalidSubscriptionError with the first error in Kafka's order.
    """
    for value in values.values():
        if value is not None and len(value.encode("utf-8", "replace")) > _MAX_VALUE_BYTES:
            raise InvalidSubscriptionError(
                ErrorCode.INVALID_CONFIG,
                "The configuration value cannot be added because it exceeds the maximum value size of "
                f"{_MAX_VALUE_BYTES} bytes.",
            )
    nulls = [key for key, value in values.items() if value is None]
    if nulls:
        raise InvalidSubscriptionError(
            ErrorCode.INVALID_CONFIG, f"Null value not supported for client metrics configs: {','.join(nulls)}"
        )
    if not name:
        raise InvalidSubscriptionError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
    for key in values:
        if key not in DEFAULTS:
            raise InvalidSubscriptionError(ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {key}")
    metrics = _list(METRICS, values)
    interval_ms = _int(INTERVAL_MS, values)
    criteria = _list(MATCH, values)
    if not MIN_INTERVAL_MS <= interval_ms <= MAX_INTERVAL_MS:
        raise InvalidSubscriptionError(
            ErrorCode.INVALID_REQUEST,
            f"Invalid value {interval_ms} for interval.ms, interval must be between 100 and 3600000 (1 hour)",
        )
    return Subscription(name, metrics, interval_ms, dict(_parse_criterion(entry, match_keys) for entry in criteria))


def described(values: Mapping[str, str]) -> dict[str, str]:
    """All keys as a broker describes them, unset keys with their defaults. `values` must be valid."""
    return {
        INTERVAL_MS: str(_int(INTERVAL_MS, values)),
        MATCH: ",".join(_list(MATCH, values)),
        METRICS: ",".join(_list(METRICS, values)),
    }


def _list(key: str, values: Mapping[str, str | None]) -> tuple[str, ...]:
    trimmed = (values.get(key) or "").strip(_TRIMMED)
    if not trimmed:
        return ()
    elements = tuple(dict.fromkeys(_COMMA.split(trimmed)))
    if "" in elements:
        raise InvalidSubscriptionError(ErrorCode.INVALID_CONFIG, f"Configuration '{key}' values must not be empty.")
    return elements


def _int(key: str, values: Mapping[str, str | None]) -> int:
    """Integer.parseInt: decimal digits of any script."""
    text = values.get(key, DEFAULTS[key]) or ""
    trimmed = text.strip(_TRIMMED)
    number = int(trimmed) if _INT.fullmatch(trimmed) and len(trimmed) < 100 else None
    if number is None or not -(2**31) <= number < 2**31:
        raise InvalidSubscriptionError(
            ErrorCode.INVALID_CONFIG, f"Invalid value {text} for configuration {key}: Not a number of type INT"
        )
    return number


def _parse_criterion(entry: str, match_keys: Collection[str]) -> tuple[str, JavaPattern]:
    """One `key=regex`."""
    illegal = f"Illegal client matching pattern: {entry}"
    parts = entry.split("=")
    while parts and not parts[-1]:  # String.split drops trailing empty strings
        parts.pop()
    key = parts[0].strip(_TRIMMED) if parts else ""
    if len(parts) != 2 or key not in match_keys:
        raise InvalidSubscriptionError(ErrorCode.INVALID_CONFIG, illegal)
    try:
        return key, JavaPattern(parts[1].strip(_TRIMMED))
    except UntranslatableError as exc:
        raise InvalidSubscriptionError(ErrorCode.INVALID_CONFIG, f"{illegal}: {exc}") from exc
    except JavaPatternError as invalid:  # mypyc gives a name one type in a function
        raise InvalidSubscriptionError(ErrorCode.INVALID_CONFIG, illegal) from invalid


@dataclass(frozen=True, slots=True, eq=False)
class MergedSubscriptions:
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
        self._selections: LRUCache[tuple[str, ...], MergedSubscriptions] = LRUCache(_MAX_CACHED)

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

    def select(self, attributes: Attributes) -> MergedSubscriptions:
        """The merged subscriptions that match a client with these attributes."""
        names = tuple(name for name in self._names if is_match(self._by_name[name], attributes))
        selection = self._selections.get(names)
        if selection is None:
            matching = [self._by_name[name] for name in names]
            # As createClientInstance: the shortest interval applies, and the default is always among them.
            interval_ms = min([DEFAULT_INTERVAL_MS, *(subscription.interval_ms for subscription in matching)])
            sets = (hash_set_of(subscription.metrics) for subscription in matching)
            metrics = tuple(hash_set(itertools.chain.from_iterable(sets)))
            if ALL_METRICS in metrics:
                metrics = (ALL_METRICS,)
            lifetime_ms = max(MIN_LIFETIME_MS, 3 * interval_ms)
            crc = subscription_crc(metrics, interval_ms)
            selection = MergedSubscriptions(metrics, without_covered(metrics), interval_ms, crc, lifetime_ms)
            self._selections[names] = selection
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
