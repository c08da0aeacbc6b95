"""Queries of the jobs: SELECT texts and their result schemas.

Times are integers (ms since the epoch), independent of time zones. Tables are named as in deploy/clickhouse; on a
cluster the same names are Distributed tables. A replay may have stored a row twice: FINAL, or aggregates that are
insensitive to duplicates, prevent double counting. Names chosen by clients may contain any bytes: toValidUTF8 makes
them valid text.
"""

from collections.abc import Mapping
from typing import Final, get_type_hints

from pyspark.sql import types as T

from exporters.model import BYTE_KEYS, UNOWNED, QuotaKey
from quota_metrics.config.resolution import CLIENT_KEYS
from quota_metrics.verdict.thresholds import CAUSE_WINDOWS
from quota_metrics.verdict.window import Telemetry, Window

# Rows of addresses carry their limit; its history is not resolved.
METERED_KEYS = (*CLIENT_KEYS, QuotaKey.CONNECTION_CREATION_RATE.value)


def schema(**columns: type[T.DataType]) -> T.StructType:
    """Column names and types, all nullable."""
    return T.StructType([T.StructField(name, kind()) for name, kind in columns.items()])


IN_RANGE = "ts >= fromUnixTimestamp64Milli({from_ms:Int64}) AND ts < fromUnixTimestamp64Milli({to_ms:Int64})"
OF_CLUSTER = "({cluster:String} = '' OR cluster = {cluster:String})"
OF_SOURCE = f"source = {{source:String}} AND quota_key IN {METERED_KEYS!r} AND {OF_CLUSTER}"

OF_MINUTES = (
    "source = {source:String} AND window_start >= toDateTime(intDiv({from_ms:Int64}, 1000), 'UTC')"
    " AND window_start < toDateTime(intDiv({to_ms:Int64}, 1000), 'UTC')"
)

# Row counts per time step, cluster and quota key, from which slices are made. `unresolved` rows do not carry the limit
# that was in force; `weight` is that of `slices`. `step_ms` divides from_ms.
COUNTS = f"""
SELECT cluster, quota_key, intDiv(toInt64(toUnixTimestamp(window_start)) * 1000, {{step_ms:Int64}}) * {{step_ms:Int64}}
           AS start_ms,
       sum(u.samples) AS samples, sumIf(u.samples, u.limit_known = 0) AS unresolved, 60 * count() AS weight
FROM usage_1m AS u FINAL
WHERE {OF_MINUTES} AND {OF_CLUSTER} AND (u.samples > 0 OR u.throttle_ms > 0)
GROUP BY cluster, quota_key, start_ms
ORDER BY start_ms, cluster, quota_key
"""  # noqa: S608 - made of our own words
BAD_ROWS = f"""
SELECT sum(if({{cluster:String}} = '', arraySum(mapValues(bad_rows)), bad_rows[{{cluster:String}}])) AS bad
FROM usage_1m_windows FINAL
WHERE {OF_MINUTES}
"""  # noqa: S608 - made of our own words

# Windows before the range with input that arrived after the last run's watermark, and the number of such rows.
LATE_WINDOWS = f"""
SELECT intDiv(toUnixTimestamp64Milli(ts), {{window_ms:Int64}}) * {{window_ms:Int64}} AS start_ms, count() AS samples
FROM quota_usage
WHERE {IN_RANGE} AND {OF_SOURCE} AND received_at >= fromUnixTimestamp64Milli({{watermark_ms:Int64}})
GROUP BY start_ms
ORDER BY start_ms
"""  # noqa: S608 - made of our own words

# Limits that were observed late: the earliest time from which they change windows.
LATE_LIMITS = f"""
SELECT toUnixTimestamp64Milli(min(valid_from)) AS start_ms, count() AS changes
FROM quota_limits
WHERE observed_at >= fromUnixTimestamp64Milli({{watermark_ms:Int64}}) AND ip = '' AND {OF_CLUSTER}
"""  # noqa: S608 - made of our own words

# The type of each field of a Window, which is one of a column of Spark.
_SPARK_TYPES: Final[Mapping[object, type[T.DataType]]] = {
    str: T.StringType,
    int: T.LongType,
    float: T.DoubleType,
    float | None: T.DoubleType,
}
USAGE_SCHEMA = schema(**{name: _SPARK_TYPES[kind] for name, kind in get_type_hints(Window).items()})

# Clients whose rows do not carry the limit that was in force.
UNRESOLVED_CLIENTS = f"""
SELECT DISTINCT cluster, quota_key, u.user AS user, u.client_id AS client_id
FROM usage_1m AS u
WHERE {OF_MINUTES} AND {OF_CLUSTER} AND limit_known = 0 AND quota_key IN {CLIENT_KEYS!r}
"""  # noqa: S608 - made of our own words

# What clients report per window; their instances, seen when their id was assigned and at each push; what instances of
# clients with new ones report of their bytes.
TELEMETRY_SCHEMA = T.StructType(
    [
        *schema(
            **dict.fromkeys(("cluster", "user", "client_id"), T.StringType),
            window_start_ms=T.LongType,
            **{name: _SPARK_TYPES[kind] for name, kind in get_type_hints(Telemetry).items() if name != "lag_per_min"},
        ).fields,
        T.StructField("lag_windows", T.ArrayType(T.LongType())),
        T.StructField("lag_records", T.ArrayType(T.DoubleType())),
    ]
)
INSTANCES_SCHEMA = schema(
    **dict.fromkeys(("cluster", "user", "client_id", "instance"), T.StringType),
    **dict.fromkeys(("first_ms", "last_ms", "pushes", "terminated"), T.LongType),
    **dict.fromkeys(("software_name", "software_version", "address"), T.StringType),
)
BYTE_REPORTS_SCHEMA = schema(
    **dict.fromkeys(("cluster", "user", "client_id", "instance"), T.StringType),
    window_start_ms=T.LongType,
    sent=T.DoubleType,
    received=T.DoubleType,
)

# The team of each client that has one, as `headroom serve` matched it last; of a million clients at most.
TEAMS = f"""
SELECT user, client_id, argMax(t.team, t.matched_at) AS team FROM client_teams AS t
GROUP BY user, client_id
HAVING team != '{UNOWNED}'
SETTINGS max_rows_to_group_by = 1000000, group_by_overflow_mode = 'any'
"""  # noqa: S608 - made of our own words
TEAMS_SCHEMA = schema(user=T.StringType, client_id=T.StringType, team=T.StringType)

# Windows that follow CAUSE_WINDOWS in each of which the cluster had usage.
OBSERVED = f"""
SELECT cluster, (window_no + ago) * {{window_ms:Int64}} AS window_start_ms, toInt32(1) AS observed_before
FROM (
    SELECT DISTINCT cluster, intDiv(toInt64(toUnixTimestamp(window_start)) * 1000, {{window_ms:Int64}}) AS window_no
    FROM usage_1m
    WHERE {OF_MINUTES} AND {OF_CLUSTER} AND quota_key IN {BYTE_KEYS!r}
)
ARRAY JOIN range(1, {CAUSE_WINDOWS + 1}) AS ago
GROUP BY cluster, window_start_ms
HAVING count() = {CAUSE_WINDOWS}
"""  # noqa: S608 - made of our own words
OBSERVED_SCHEMA = schema(cluster=T.StringType, window_start_ms=T.LongType, observed_before=T.IntegerType)

# How many seconds of the limit a rate may hold at once, where the brokers' own configuration was read: the least of a
# cluster's brokers (quota_metrics.windows.QuotaWindow.full_s).
FULL_WINDOWS = """
SELECT cluster, min(greatest((quota_window_num - 1) * quota_window_size_ms, 1)) / 1000 AS full_s
FROM cluster_facts_now
WHERE quota_window_num > 0 AND quota_window_size_ms > 0
GROUP BY cluster
"""

STAGING: Final = "quota_utilization_staging"
