"""What a client feels, by its own telemetry beside what the wire saw: `impact` and `impact_reason`, as SQL expressions
that ClickHouse and Spark understand alike (`definition`).

They read the columns of `client_signals` of the window and those of the level; `lag_per_min`: change of the lag per
minute over the last windows, NULL without a steady one. In words: docs/levels.md.
"""

from __future__ import annotations

from typing import Final

from exporters.model import QuotaKey
from quota_metrics.levels.client_signals import DELIVERY_TIMEOUT_MS
from quota_metrics.levels.definition import case, concat, duration, rounded, text

HARMS: Final = ("delayed", "falling-behind", "losing")  # least harm first; else `none` or, without telemetry, `unknown`
NEAR_LEVELS: Final = ("warn", "critical", "throttled")  # at which harm may be the quota's: reports rank by it first

_LAG = 1_000.0  # records: a consumer that is throttled and has fewer to fetch is not delayed
_LAG_GROWTH = 0.1  # share of its lag by which it grows in a minute when a consumer falls behind
_LEAST_GROWTH = 100.0  # records per minute
_WAITS_MS = 500.0  # records that wait longer in a producer are delayed: well above linger.ms of real producers
_SLOW_MS = 1_000.0  # request latency, where a producer does not report its queue
_NEAR_TIMEOUT = 0.5  # share of the delivery timeout that records wait when a producer falls behind
_MOST = 0.5  # share of its client's bytes from which an instance is named

_PRODUCES = f"quota_key <> '{QuotaKey.CONSUMER_BYTE_RATE.value}'"
_CONSUMES = f"quota_key <> '{QuotaKey.PRODUCER_BYTE_RATE.value}'"
_TIMEOUT = case(*((f"software_name = {text(name)}", repr(ms)) for name, ms in DELIVERY_TIMEOUT_MS), otherwise="1e18")
_REPORTS = (
    "(produce_throttle_ms IS NOT NULL OR fetch_throttle_ms IS NOT NULL OR request_latency_ms IS NOT NULL"
    " OR queue_time_ms IS NOT NULL OR records_lag IS NOT NULL OR records_failed IS NOT NULL)"
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
_SLOW = f"({_PRODUCES} AND queue_time_ms IS NULL AND request_latency_ms >= {_SLOW_MS!r} AND records_lag IS NULL)"
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

_KIND = case(
    (f"quota_key = '{QuotaKey.PRODUCER_BYTE_RATE.value}'", "'produce throttle'"),
    (f"quota_key = '{QuotaKey.CONSUMER_BYTE_RATE.value}'", "'fetch throttle'"),
    otherwise="'throttle'",
)
_OF_TIMEOUT = case(
    (f"{_PILES_UP} AND {_TIMEOUT} < 1e18", concat("' of the '", duration(_TIMEOUT), "' after which they are lost'")),
    otherwise="''",
)


def _part(condition: str, *parts: str) -> str:
    return f"nullif({case((condition, concat(*parts)), otherwise=text(''))}, '')"


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
IMPACT_REASON: Final = f"concat_ws('; ', {', '.join(_PARTS)})"
