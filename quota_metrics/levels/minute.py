"""The statement with which `headroom serve` computes the levels of one minute into headroom_minutes.

The views of now, the pages, `headroom top`, /metrics and headroom_by_minute read that table. The minutes before are the
memory of levels (hysteresis), so minutes are computed in order.
"""

from __future__ import annotations

from typing import Final

from exporters.model import UNOWNED
from quota_metrics.levels import cause, definition, impact, instances_query, signals_query
from quota_metrics.levels.cause import TOLD_WINDOWS
from quota_metrics.levels.definition import MARGIN, MEMORY_WINDOWS, Thresholds
from quota_metrics.levels.windows_query import SETTINGS, Samples, WindowsQuery

WINDOW_S: Final = 60
MINUTE_LATE_S: Final = 150.0  # after the end of the newest minute: the next one should have been computed a minute ago

# The minutes that received rows since a time, with all their rows.
CHANGED_MINUTES: Final = """
SELECT toInt64(toUnixTimestamp(minute)) AS window_s, count() AS rows
FROM quota_usage_recent
WHERE minute IN (
    SELECT DISTINCT r.minute FROM quota_usage_recent AS r
    WHERE r.received_at >= fromUnixTimestamp64Milli({since_ms:Int64})
      AND r.minute >= fromUnixTimestamp({first_s:Int64}) AND r.minute <= fromUnixTimestamp({last_s:Int64}))
GROUP BY minute
ORDER BY minute
"""

# The thresholds that the store has, and new ones.
_THRESHOLDS = ", ".join(Thresholds._fields)
THRESHOLDS: Final = f"SELECT {_THRESHOLDS} FROM level_thresholds ORDER BY set_at DESC LIMIT 1"  # noqa: S608
SET_THRESHOLDS: Final = f"""
INSERT INTO level_thresholds ({_THRESHOLDS})
SELECT {", ".join(f"{{{name}:Float64}}" for name in Thresholds._fields)}
"""


# Clients of a minute whose team is not known yet.
CLIENTS_WITHOUT_A_TEAM: Final = """
SELECT DISTINCT toValidUTF8(u.user) AS user, toValidUTF8(u.client_id) AS client_id
FROM quota_usage_recent AS u
WHERE minute = fromUnixTimestamp({window_s:Int64})
  AND (toValidUTF8(u.user), toValidUTF8(u.client_id)) NOT IN (
      SELECT t.user, t.client_id FROM client_teams AS t
      WHERE owners = {owners:UInt64} AND matched_at > now('UTC') - INTERVAL 1 HOUR)
LIMIT {clients:UInt32}
"""
CLIENTS_WITH_A_TEAM: Final = """
SELECT count() AS clients FROM client_teams
WHERE owners = {owners:UInt64} AND matched_at > now('UTC') - INTERVAL 1 HOUR
"""

_TEAMS = """
SELECT user, client_id, team AS owned_by FROM client_teams
WHERE owners = {owners:UInt64} AND matched_at > now('UTC') - INTERVAL 2 HOUR
"""
_TEAM = f"if(owned_by = '', '{UNOWNED}', owned_by)"
_NUMBERS = ", ".join(definition.NUMBERS)
_CLIENT = "cluster, source, quota_key, user, client_id"
_INSTANCES = "software_name, software_version, instances, pushes, last_seen"
_WINDOW = f"""
    {_CLIENT}, broker_id, state, `limit`, rule_limit, implied_limit, decided_by,
    matched_entity, bucket_user, bucket_client_id, usage, usage_p95, usage_max,
    bytes, group_usage, group_p95, throttle_ms, muted_ms, shared_with, elapsed_s, samples"""

# The greatest value of each client in each minute of the memory, newest computation of the minute first. A minute that
# is missing, or whose value holds no level, counts as 0.
_MEMORY = f"""
SELECT {_CLIENT},
       groupArrayInsertAt(0., {MEMORY_WINDOWS})(value, toUInt32(
           intDiv(toUnixTimestamp(window_start) - intDiv({{from_ms:Int64}}, 1000), {WINDOW_S}) + {MEMORY_WINDOWS}))
           AS remembered
FROM (
    SELECT {_CLIENT}, window_start, greatest(utilization, utilization_p95) AS value
    FROM headroom_minutes
    WHERE window_start >= fromUnixTimestamp64Milli({{from_ms:Int64}} - {1000 * WINDOW_S * MEMORY_WINDOWS})
      AND window_start < fromUnixTimestamp64Milli({{from_ms:Int64}}) AND is_worst
      AND (window_start, computed_at) IN (
          SELECT window_start, max(computed_at) FROM headroom_minutes
          WHERE window_start >= fromUnixTimestamp64Milli({{from_ms:Int64}} - {1000 * WINDOW_S * MEMORY_WINDOWS})
            AND window_start < fromUnixTimestamp64Milli({{from_ms:Int64}})
          GROUP BY window_start)
)
WHERE value >= {{least_remembered:Float64}}
GROUP BY {_CLIENT}"""  # noqa: S608 - made of our own words

_START = "fromUnixTimestamp64Milli({from_ms:Int64})"
_LATELY = f"window_start >= {_START} - {WINDOW_S * TOLD_WINDOWS} AND window_start < {_START}"
# With the minute before the earliest onset.
_SINCE_BASE = f"window_start >= {_START} - {WINDOW_S * (TOLD_WINDOWS + 1)} AND window_start < {_START}"
_NEWEST = f"""(window_start, computed_at) IN (
    SELECT window_start, max(computed_at) FROM headroom_minutes WHERE {_SINCE_BASE} GROUP BY window_start)"""  # noqa: S608

# What causes are derived from: each client at each broker in the minute before; the minutes before of each client on
# its worst broker; clusters that had usage in all of them.
_BASES = f"""
SELECT {_CLIENT}, broker_id, 1 AS has_base, {", ".join(f"b.{name} AS base_{name}" for name in cause.BASE)}
FROM headroom_minutes AS b
WHERE window_start = {_START} - {WINDOW_S} AND {_NEWEST}"""  # noqa: S608 - made of our own words
_OF_BEFORE, _OF_EARLIER = (f"window_start = {_START} - {ago * WINDOW_S}" for ago in (1, 2))
_EARLIER = f"""
SELECT {_CLIENT}, countIf(is_worst AND {_LATELY}) AS seen_before,
       maxIf(coalesce({definition.VALUE}, 0.), is_worst AND {_OF_BEFORE}) AS before_value,
       maxIf(muted_ms, is_worst AND {_OF_BEFORE}) AS before_muted_ms, sumIf(usage, {_OF_BEFORE}) AS total_before,
       maxIf(coalesce({definition.VALUE}, 0.), is_worst AND {_OF_EARLIER}) AS earlier_value,
       maxIf(muted_ms, is_worst AND {_OF_EARLIER}) AS earlier_muted_ms,
       argMaxIf(cause, window_start, is_worst AND is_onset AND {_LATELY}) AS earlier_cause,
       toUnixTimestamp(maxIf(window_start, is_worst AND is_onset AND {_LATELY})) AS onset_s,
       if(onset_s = 0, 0, intDiv(intDiv({{from_ms:Int64}}, 1000) - onset_s, {WINDOW_S})) AS onset_ago,
       sumMapIf(map(toUnixTimestamp(window_start), usage), is_worst)[toUInt32(onset_s - {WINDOW_S})]
           AS usage_before_onset
FROM headroom_minutes
WHERE {_SINCE_BASE} AND {_NEWEST}
GROUP BY {_CLIENT}"""  # noqa: S608 - made of our own words
_CHANGES = f"SELECT cluster, user, client_id, {', '.join(cause.CHANGE.values())} FROM view({instances_query.CHANGES})"  # noqa: S608
_OBSERVED = f"""
SELECT cluster, source, 1 AS observed_before
FROM headroom_minutes
WHERE {_LATELY} AND is_worst AND quota_key IN ({", ".join(map(definition.text, definition.MEASURED_KEYS))})
GROUP BY cluster, source
HAVING uniqExact(window_start) = {TOLD_WINDOWS}"""  # noqa: S608 - made of our own words


def _holds(threshold: float) -> str:
    """Whether a threshold holds: reached within the memory, and not followed by two windows below it by the margin."""
    low = f"{threshold!r} - {MARGIN!r}"
    left = f"(now, before) -> now < {low} AND before < {low}"
    return (
        f"arrayLastIndex(v -> v >= {threshold!r}, history) > 0 AND arrayLastIndex(v -> v >= {threshold!r}, history)"
        f" > arrayLastIndex({left}, history, arrayPushFront(arrayPopBack(history), inf))"
    )


def _held(thresholds: Thresholds) -> str:
    steps = [(_holds(step), str(number)) for number, step in enumerate(thresholds.steps, start=1)]
    return definition.case(*reversed(steps), otherwise="0")


def _measured(thresholds: Thresholds) -> str:
    """Each client at each broker in the minute, with what its level goes by."""
    worst = f"row_number() OVER (PARTITION BY {_CLIENT} ORDER BY {definition.worst_broker_first(thresholds)})"
    return f"""
SELECT *, {worst} = 1 AS is_worst, {{from_ms:Int64}} AS start_ms,
       sum(usage) OVER (PARTITION BY {_CLIENT}) AS total_usage,
       dense_rank() OVER (ORDER BY cluster, user, client_id) AS client_place
FROM view(
    SELECT *, {definition.VALUE} AS value
    FROM view(
        SELECT {_WINDOW}, {", ".join(f"{expression} AS {name}" for name, expression in definition.NUMBERS.items())},
               {definition.CULPRIT_USER} AS culprit_user, {definition.CULPRIT_CLIENT_ID} AS culprit_client_id,
               {definition.CULPRIT_SHARE} AS culprit_share
        FROM view({WindowsQuery(WINDOW_S, Samples.RECENT).usage()})
        WHERE {definition.WORTH_A_ROW}
    )
)"""  # noqa: S608 - made of our own words


def _joined(thresholds: Thresholds) -> str:
    """Each client at each broker in the minute, with the memory of its levels, its team, its instances, what it
    reported and the minutes before."""
    reporters = f"SELECT cluster, user, client_id, {_INSTANCES} FROM client_instances_now"  # noqa: S608
    joined = f"view({_measured(thresholds)}) AS measured LEFT ANY JOIN ({_MEMORY}) AS memory USING ({_CLIENT})"
    # The earlier planner would plan what `joined` holds again at each level; it takes no view of a JOIN by itself.
    for name, rows, key in (
        ("teams", _TEAMS, "user, client_id"),
        ("instances_now", reporters, "cluster, user, client_id"),
        ("signals", signals_query.SIGNALS, "cluster, user, client_id"),
        ("bases", _BASES, f"{_CLIENT}, broker_id"),
        ("earlier", _EARLIER, _CLIENT),
        ("observed", _OBSERVED, "cluster, source"),
        ("changes", _CHANGES, "cluster, user, client_id"),
    ):
        joined = f"view(SELECT * FROM (SELECT * FROM {joined})) AS m LEFT ANY JOIN view({rows}) AS {name} USING ({key})"  # noqa: S608
    return f"SELECT * FROM {joined}"  # noqa: S608 - made of our own words


def _leveled(thresholds: Thresholds) -> str:
    """The rows of _joined with their levels, after the memory of the minutes before."""
    history = f"arrayConcat(remembered, arrayWithConstant({MEMORY_WINDOWS} - length(remembered), 0.), [now])"
    return f"""
SELECT *, {definition.level("held", thresholds)} AS level,
       {definition.level("reached", thresholds)} AS instant_level, {definition.RULE} AS rule,
       is_worst AND {definition.is_onset(thresholds)} AS is_onset,
       {", ".join(f"{each} AS {name}" for name, each in cause.COMPARED.items())},
       {cause.ONSET_KIND} AS onset_kind, {cause.ONSET_CAUSE} AS onset_cause,
       {", ".join(f"arrayElement({each}, onset_ago) AS {name}" for name, each in cause.CHANGE.items())},
       {", ".join(f"{expression} AS {name}" for name, expression in impact.FELT.items())}
FROM view(
    SELECT *, {definition.reached(thresholds)} AS reached,
           coalesce(value, 0.) AS now, {history} AS history,
           if(is_worst AND notEmpty(remembered), {_held(thresholds)}, reached) AS held
    FROM ({_joined(thresholds)})
)"""  # noqa: S608 - made of our own words


def compute_minute(thresholds: Thresholds) -> str:
    """The INSERT of the minute that begins at `from_ms`: as a whole, beside older computations of it; the newest
    computed_at counts.

    Parameters: those of WindowsQuery (to_ms - from_ms and window_ms are a minute) and of SIGNALS, least_remembered,
    owners.
    """
    return f"""
INSERT INTO headroom_minutes
    (window_start, computed_at, is_worst, cluster, source, quota_key, user, client_id, broker_id, `limit`, usage,
     {_NUMBERS}, throttle_ms, level, instant_level, reason, limit_known, matched_entity, bucket_user, bucket_client_id,
     usage_p95, usage_max, bytes, group_usage, group_p95, muted_ms, shared_with, culprit_user,
     culprit_client_id, culprit_share, implied_limit, team, window_s, software_name, software_version, instances,
     pushes, last_seen, impact, impact_reason, cause, is_onset, client_place)
SELECT
    fromUnixTimestamp64Milli({{from_ms:Int64}}), now64(3, 'UTC'), is_worst, cluster, source, quota_key, user,
    client_id, broker_id, `limit`, usage, {_NUMBERS}, throttle_ms, level, instant_level,
    {definition.reason(thresholds)}, state <> 'unknown', matched_entity, bucket_user, bucket_client_id, usage_p95,
    usage_max, bytes, group_usage, group_p95, muted_ms, shared_with, culprit_user, culprit_client_id,
    culprit_share, implied_limit, {_TEAM}, elapsed_s, software_name, software_version, instances, pushes, last_seen,
    {impact.IMPACT}, {impact.IMPACT_REASON}, {cause.CAUSE}, is_onset, client_place
FROM view({_leveled(thresholds)})
{SETTINGS}
"""  # noqa: S608 - made of our own words


def minute_parameters(
    window_s: int, thresholds: Thresholds, run: str = "", owners: int = 0, *, telemetry: bool = True
) -> dict[str, object]:
    """The parameters of compute_minute; `run`: under which limits of the minute were resolved; `owners`: under which
    checksum client_teams has the teams; 0: there are none. Without `telemetry` every impact is unknown."""
    bounds = {"from_ms": window_s * 1000, "to_ms": (window_s + WINDOW_S) * 1000, "window_ms": WINDOW_S * 1000}
    signals = {"cluster": "", "telemetry": int(telemetry)}
    return {**bounds, **signals, "least_remembered": thresholds.steps[0] - MARGIN, "run": run, "owners": owners}
