"""What a client feels, by its own telemetry beside what the wire saw: `impact` and `impact_reason`, as SQL expressions.

They read the columns of `signals_query` of the window, NULL without telemetry, and those of the level. In words:
docs/levels.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from exporters.model import QuotaKey
from quota_metrics.levels.client_signals import DELIVERY_TIMEOUT_MS
from quota_metrics.levels.definition import case, concat, duration, rounded, text

HARMS: Final = ("delayed", "falling-behind", "losing")  # least harm first
IMPACTS: Final = ("unknown", "none", *HARMS)  # numbers on /metrics: from -1 on; `unknown` without telemetry
NEAR_LEVELS: Final = ("warn", "critical", "throttled")  # at which harm may be the quota's: reports rank by it first

_LAG = 1_000.0  # records: a consumer that is throttled and has fewer to fetch is not delayed
_LAG_GROWTH = 0.1  # share of its lag by which it grows in a minute when a consumer falls behind
_LEAST_GROWTH = 100.0  # records per minute
_WAITS_MS = 500.0  # records that wait longer in a producer are delayed: well above linger.ms of real producers
_SLOW_MS = 1_000.0  # request latency of a delayed producer: requests of librdkafka wait at the broker
_NEAR_TIMEOUT = 0.5  # share of the delivery timeout that records wait when a producer falls behind
_MOST = 0.5  # share of its client's bytes from which an instance is named


def number_of_impact(impact: str) -> float:
    """The impact's value on /metrics, from -1 on; -1 for one that no release computes."""
    return float(IMPACTS.index(impact) - 1) if impact in IMPACTS else -1.0


def impact_text(impact: str, impact_reason: str) -> str:
    """Both in one line."""
    if impact == "unknown":
        return "unknown: no telemetry in this minute says it"
    return f"{impact}: {impact_reason}" if impact_reason else impact


def of_direction(sender: str, receiver: str, otherwise: str) -> str:
    """What is about the side that the quota limits."""
    return case(
        (f"quota_key = '{QuotaKey.PRODUCER_BYTE_RATE.value}'", sender),
        (f"quota_key = '{QuotaKey.CONSUMER_BYTE_RATE.value}'", receiver),
        otherwise=otherwise,
    )


_SHARE = of_direction("top_sender_share", "top_receiver_share", "NULL")
_THROTTLES = "produce_throttle_ms", "fetch_throttle_ms"

# What the expressions of impact read besides: the throttle time that the client felt from this quota, and who of
# several instances sends or receives most.
FELT: Final[Mapping[str, str]] = {
    "client_throttle_ms_max": of_direction(
        *_THROTTLES, f"coalesce(greatest({', '.join(_THROTTLES)}), {', '.join(_THROTTLES)})"
    ),
    "busiest_instance": case((f"{_SHARE} < 1", of_direction("top_sender", "top_receiver", "''")), otherwise="''"),
    "busiest_instance_share": case((f"{_SHARE} < 1", _SHARE), otherwise="NULL"),
}

_PRODUCES = f"quota_key <> '{QuotaKey.CONSUMER_BYTE_RATE.value}'"
_CONSUMES = f"quota_key <> '{QuotaKey.PRODUCER_BYTE_RATE.value}'"
_TIMEOUT = case(*((f"software_name = {text(name)}", repr(ms)) for name, ms in DELIVERY_TIMEOUT_MS), otherwise="1e18")
# What the quota's side is judged by: a librdkafka consumer reports neither lag nor throttle times, so nobody knows.
_OF_PRODUCER = "produce_throttle_ms", "request_latency_ms", "queue_time_ms", "records_failed"
_OF_CONSUMER = "fetch_throttle_ms", "records_lag"


def _any_reported(names: Sequence[str]) -> str:
    return f"({' OR '.join(f'{name} IS NOT NULL' for name in names)})"


_REPORTS = of_direction(
    _any_reported(_OF_PRODUCER), _any_reported(_OF_CONSUMER), _any_reported((*_OF_PRODUCER, *_OF_CONSUMER))
)
_FAILED = f"({_PRODUCES} AND records_failed > 0)"
_REFUSED = f"({_PRODUCES} AND records_refused > 0)"
_EXPIRES = f"({_PRODUCES} AND queue_time_ms >= {_TIMEOUT})"
_LAGS = (
    f"({_CONSUMES} AND records_lag >= {_LAG!r} AND lag_per_min >= {_LEAST_GROWTH!r}"
    f" AND lag_per_min >= {_LAG_GROWTH!r} * records_lag)"
)
_PILES_UP = f"({_PRODUCES} AND queue_time_ms >= {_NEAR_TIMEOUT!r} * {_TIMEOUT})"
_WAITS = f"({_PRODUCES} AND queue_time_ms >= {_WAITS_MS!r})"
_SLOW = f"({_PRODUCES} AND request_latency_ms >= {_SLOW_MS!r} AND records_lag IS NULL)"
_RETRIES = f"({_PRODUCES} AND records_retried > 0)"
_FETCHES_LATE = f"({_CONSUMES} AND records_lag >= {_LAG!r} AND (client_throttle_ms_max > 0 OR muted_ms > 0))"
# Throttling that neither a queue nor a lag puts into proportion counts as delay.
_FELT = "(client_throttle_ms_max > 0 AND queue_time_ms IS NULL AND records_lag IS NULL)"
_REBALANCES = f"({_CONSUMES} AND rebalances > 0 AND (client_throttle_ms_max > 0 OR muted_ms > 0))"

_LOSING = f"({_FAILED} OR {_REFUSED} OR {_EXPIRES})"
_FALLING_BEHIND = f"({_LAGS} OR {_PILES_UP})"
_DELAYED = f"({_WAITS} OR {_SLOW} OR {_RETRIES} OR {_FETCHES_LATE} OR {_FELT} OR {_REBALANCES})"

IMPACT: Final = case(
    (f"NOT {_REPORTS}", "'unknown'"),
    (_LOSING, "'losing'"),
    (_FALLING_BEHIND, "'falling-behind'"),
    (_DELAYED, "'delayed'"),
    otherwise="'none'",
)

_KIND = of_direction("'produce throttle'", "'fetch throttle'", "'throttle'")
_OF_TIMEOUT = case(
    (f"{_PILES_UP} AND {_TIMEOUT} < 1e18", concat("' of the '", duration(_TIMEOUT), "' after which they are lost'")),
    otherwise="''",
)


def _part(condition: str, *parts: str) -> str:
    return case((condition, concat("'; '", *parts)), otherwise="''")


_PARTS = (
    _part(_FAILED, rounded("records_failed"), "' records failed or expired'"),
    _part(_REFUSED, rounded("records_refused"), "' sends found no room in the buffer'"),
    _part(_WAITS, "'records waited '", duration("queue_time_ms"), "' in the producer'", _OF_TIMEOUT),
    _part(
        f"({_CONSUMES} AND records_lag >= {_LAG!r})",
        rounded("records_lag"),
        "' records behind'",
        case((_LAGS, concat("', '", rounded("lag_per_min"), "' more each minute'")), otherwise="''"),
    ),
    _part(_RETRIES, rounded("records_retried"), "' records sent again'"),
    _part(_SLOW, "'requests took up to '", duration("request_latency_ms")),
    _part(_REBALANCES, rounded("rebalances"), "' rebalances'"),
    _part("client_throttle_ms_max > 0", "'client felt '", _KIND, "' '", duration("client_throttle_ms_max")),
    _part(
        f"busiest_instance_share >= {_MOST!r}",
        *("'instance '", "busiest_instance", "' reports '", rounded("busiest_instance_share * 100")),
        "' % of its bytes'",
    ),
)
IMPACT_REASON: Final = f"substring({concat(*_PARTS)}, 3)"
