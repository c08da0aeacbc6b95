"""Parses and validates the keys and values of one CLIENT_METRICS resource as Kafka does. Sans-I/O.

Source: ControllerConfigurationValidator and ClientMetricsConfigs of Kafka 4.3 (4.2 and later refuse blank list
elements). Codes and messages are Kafka's.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from telemetry.rules.java.regex import JavaPattern
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
    _check_given(name, values)
    metrics = _list(METRICS, values)
    interval_ms = _int(INTERVAL_MS, values)
    criteria = _list(MATCH, values)
    if not MIN_INTERVAL_MS <= interval_ms <= MAX_INTERVAL_MS:
        raise InvalidSubscriptionError(
            ErrorCode.INVALID_REQUEST,
            f"Invalid value {interval_ms} for interval.ms, interval must be between 100 and 3600000 (1 hour)",
        )
    return Subscription(name, metrics, interval_ms, dict(_criterion(entry, match_keys) for entry in criteria))


def described(values: Mapping[str, str]) -> dict[str, str]:
    """All keys as a broker describes them, unset keys with their defaults. `values` must be valid."""
    return {
        INTERVAL_MS: str(_int(INTERVAL_MS, values)),
        MATCH: ",".join(_list(MATCH, values)),
        METRICS: ",".join(_list(METRICS, values)),
    }


def _check_given(name: str, values: Mapping[str, str | None]) -> None:
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


def _criterion(entry: str, match_keys: Collection[str]) -> tuple[str, JavaPattern]:
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
    except JavaPatternError as exc:
        raise InvalidSubscriptionError(ErrorCode.INVALID_CONFIG, illegal) from exc
