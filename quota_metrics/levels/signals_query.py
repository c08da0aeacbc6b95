"""The SELECT that makes signals from points: what each client reported about itself, one row per client and window.

The job's ranges and the live minute read the same query. `client_signals` says which metrics a column comes from;
`lag_per_min` is the change of a consumer's lag per minute, by a line through those of the last ten windows that have a
lag: NULL with fewer than three, or when the line explains less than half.

Query parameters: from_ms, to_ms (from on the grid of windows), window_ms, cluster ('' for all), telemetry (0: read
nothing).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from quota_metrics.levels import client_signals
from quota_metrics.levels.definition import MEMORY_WINDOWS

_LAG_WINDOWS = 3  # of the last ten, for a trend of the lag: clients push every some minutes
_LAG_FIT = 0.5  # coefficient of determination
_CLIENT = "cluster, user, client_id"
_INSTANCES = ("top_sender", "top_sender_share", "top_receiver", "top_receiver_share")


def _in(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _busiest(name: str, metrics: tuple[str, ...]) -> str:
    """The instance with the largest part of the client's bytes, and its share."""
    return f"""sumMapIf(map(instance, total), metric IN ({_in(metrics)})) AS {name}_bytes,
       arrayReverseSort(each -> (each.2, each.1), arrayZip(mapKeys({name}_bytes), mapValues({name}_bytes)))[1]
           AS {name},
       {name}.1 AS top_{name},
       if({name}.2 > 0, {name}.2 / arraySum(mapValues({name}_bytes)), NULL) AS top_{name}_share"""


# Of the windows before the range only the lag is read. A gauge without a sample is NaN.
_SERIES = f"""
SELECT cluster, toValidUTF8(p.principal) AS user, toValidUTF8(p.client_id) AS client_id, metric, series_id,
       toString(client_instance_id) AS instance, intDiv(toUnixTimestamp64Milli(ts), {{window_ms:Int64}}) AS window_no,
       max(value) AS top, sum(value) AS total
FROM points AS p FINAL
WHERE {{telemetry:UInt8}}
  AND ts >= fromUnixTimestamp64Milli({{from_ms:Int64}} - {MEMORY_WINDOWS - 1} * {{window_ms:Int64}})
  AND ts < fromUnixTimestamp64Milli({{to_ms:Int64}}) AND metric IN ({_in(client_signals.METRICS)})
  AND (ts >= fromUnixTimestamp64Milli({{from_ms:Int64}}) OR metric IN ({_in(client_signals.metrics_of("records_lag"))}))
  AND isFinite(value) AND bitAnd(flags, 1) = 0 AND ({{cluster:String}} = '' OR cluster = {{cluster:String}})
GROUP BY {_CLIENT}, metric, series_id, instance, window_no"""  # noqa: S608 - made of our own words

_WINDOWS = f"""
SELECT {_CLIENT}, window_no, {", ".join(client_signals.columns())},
       {_busiest("sender", client_signals.metrics_of("outgoing_bytes"))},
       {_busiest("receiver", client_signals.metrics_of("incoming_bytes"))}
FROM ({_SERIES})
GROUP BY {_CLIENT}, window_no"""  # noqa: S608 - made of our own words

# Times of a trend are relative to its own window, so that it does not depend on where the range begins.
SIGNALS: Final = f"""
WITH arrayMap(each -> (each.1 - window_no) * {{window_ms:Int64}} / 60000, lags) AS minutes, lags.2 AS behind,
     arrayReduce('varPopStable', minutes) AS reach, arrayReduce('varPopStable', behind) AS spread,
     arrayReduce('covarPopStable', behind, minutes) AS together
SELECT {_CLIENT}, window_no * {{window_ms:Int64}} AS window_start_ms, {", ".join(client_signals.NAMES)},
       {", ".join(_INSTANCES)},
       if(length(lags) >= {_LAG_WINDOWS} AND together * together >= {_LAG_FIT} * spread * reach, together / reach, NULL)
           AS lag_per_min
FROM (
    SELECT *, groupArrayIf((window_no, assumeNotNull(records_lag)), isNotNull(records_lag)) OVER (
                  PARTITION BY {_CLIENT} ORDER BY window_no
                  RANGE BETWEEN {MEMORY_WINDOWS - 1} PRECEDING AND CURRENT ROW) AS lags
    FROM ({_WINDOWS})
)
WHERE window_no * {{window_ms:Int64}} >= {{from_ms:Int64}}"""  # noqa: S608 - made of our own words
COLUMNS: Final = (*client_signals.NAMES, *_INSTANCES, "lag_per_min")  # beside the client and the window
