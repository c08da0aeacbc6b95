"""Queries of quota-headroom: SELECT texts and their result schemas, and the INSERT of what Spark made of them.

ClickHouse aggregates to windows first (`windows_query`), so Spark reads no raw points or samples. Times are integers
(ms since the epoch), independent of time zones. Tables are named as in deploy/clickhouse; on a cluster the same names
are Distributed tables. A replay may have stored a row twice: FINAL, or aggregates that are insensitive to duplicates,
prevent double counting. Names chosen by clients may contain any bytes: toValidUTF8 makes them valid text.

Spark joins, orders and compares windows; level, impact, cause and reason follow from the columns of one window.
ClickHouse makes them of whole columns while it stages the windows, by the expressions of the live minute. In Spark they
took most of the planning of the job and a fifth of the time of its executors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import types as T

from exporters.model import UNOWNED, QuotaKey
from quota_metrics.levels import cause, client_signals, definition, impact
from quota_metrics.levels.cause import CHANGE, TOLD_WINDOWS
from quota_metrics.levels.definition import NUMBERS, Thresholds
from quota_metrics.levels.instances_query import CHANGES
from quota_metrics.levels.signals_query import SIGNALS
from quota_metrics.levels.windows_query import BAD_NUMBER, SETTINGS
from spark_jobs.time_range import TimeRange

BYTE_KEYS = (QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE)
CLIENT_KEYS = (*BYTE_KEYS, QuotaKey.REQUEST_PERCENTAGE, QuotaKey.CONTROLLER_MUTATION_RATE)
# Rows of addresses carry their limit; its history is not resolved.
METERED_KEYS = (*CLIENT_KEYS, QuotaKey.CONNECTION_CREATION_RATE)

# How long before a window's end a client instance may have been seen last. A muted client cannot push, and a client
# with a push interval of 5 minutes does not push in most windows.
INSTANCE_LOOKBACK_S = 3600


def schema(**columns: type[T.DataType]) -> T.StructType:
    """Column names and types, all nullable."""
    return T.StructType([T.StructField(name, kind()) for name, kind in columns.items()])


def _in(values: tuple[str, ...]) -> str:
    return ", ".join(f"'{value}'" for value in values)


_RANGE = "ts >= fromUnixTimestamp64Milli({from_ms:Int64}) AND ts < fromUnixTimestamp64Milli({to_ms:Int64})"
OF_SOURCE = (
    f"source = {{source:String}} AND quota_key IN ({_in(METERED_KEYS)})"
    " AND ({cluster:String} = '' OR cluster = {cluster:String})"
)

# Row counts per time step, cluster and quota key, from which slices are made. `unresolved` rows do not carry the limit
# that was in force; `weight` is that of `slices`. `step_ms` divides from_ms. Rows shortly before the range count as
# well, because their throttle times may extend into it.
COUNTS = f"""
SELECT cluster, quota_key, intDiv(toUnixTimestamp64Milli(ts), {{step_ms:Int64}}) * {{step_ms:Int64}} AS start_ms,
       count() AS samples, countIf({BAD_NUMBER}) AS bad, countIf(limit_known = 0) AS unresolved,
       greatest(samples, intDiv({{window_ms:Int64}}, 1000) * uniq(
           cityHash64(user, client_id, broker_id, intDiv(toUnixTimestamp64Milli(ts), {{window_ms:Int64}})))) AS weight,
       toUnixTimestamp64Milli(max(received_at)) AS newest_ms
FROM quota_usage
WHERE {_RANGE} AND {OF_SOURCE}
GROUP BY cluster, quota_key, start_ms
ORDER BY start_ms, cluster, quota_key
"""  # noqa: S608 - made of our own words

# The same from usage_1m. Bad rows are counted by hour.
STORED_RANGE = (
    "source = {source:String} AND window_start >= toDateTime(intDiv({from_ms:Int64}, 1000))"
    " AND window_start < toDateTime(intDiv({to_ms:Int64}, 1000))"
)
COUNTS_STORED = f"""
SELECT cluster, quota_key, intDiv(toInt64(toUnixTimestamp(window_start)) * 1000, {{step_ms:Int64}}) * {{step_ms:Int64}}
           AS start_ms,
       sum(u.samples) AS samples, 0 AS bad, sumIf(u.samples, u.limit_known = 0) AS unresolved,
       greatest(samples, 60 * count()) AS weight
FROM usage_1m AS u FINAL
WHERE {STORED_RANGE} AND ({{cluster:String}} = '' OR cluster = {{cluster:String}})
GROUP BY cluster, quota_key, start_ms
ORDER BY start_ms, cluster, quota_key
"""  # noqa: S608 - made of our own words
BAD_STORED = f"""
SELECT sum(if({{cluster:String}} = '', arraySum(mapValues(bad_rows)), bad_rows[{{cluster:String}}])) AS bad
FROM usage_1m_windows FINAL
WHERE {STORED_RANGE}
"""  # noqa: S608 - made of our own words

# Windows before the range with input that arrived after the last run's watermark, and the number of such rows.
LATE_WINDOWS = f"""
SELECT intDiv(toUnixTimestamp64Milli(ts), {{window_ms:Int64}}) * {{window_ms:Int64}} AS start_ms, count() AS samples
FROM quota_usage
WHERE {_RANGE} AND {OF_SOURCE} AND received_at >= fromUnixTimestamp64Milli({{watermark_ms:Int64}})
GROUP BY start_ms
ORDER BY start_ms
"""  # noqa: S608 - made of our own words

# Limits that were observed late: the earliest time from which they change windows.
LATE_LIMITS = """
SELECT toUnixTimestamp64Milli(min(valid_from)) AS start_ms, count() AS changes
FROM quota_limits
WHERE observed_at >= fromUnixTimestamp64Milli({watermark_ms:Int64}) AND ip = ''
  AND ({cluster:String} = '' OR cluster = {cluster:String})
"""

USAGE_SCHEMA = schema(
    cluster=T.StringType,
    source=T.StringType,
    quota_key=T.StringType,
    user=T.StringType,
    client_id=T.StringType,
    broker_id=T.IntegerType,
    window_start_ms=T.LongType,
    samples=T.LongType,
    throttle_ms=T.DoubleType,
    muted_ms=T.DoubleType,
    elapsed_s=T.IntegerType,
    state=T.StringType,
    limit=T.DoubleType,
    rule_limit=T.DoubleType,
    decided_by=T.StringType,
    implied_limit=T.DoubleType,
    matched_entity=T.StringType,
    bucket_user=T.StringType,
    bucket_client_id=T.StringType,
    usage=T.DoubleType,
    usage_p95=T.DoubleType,
    usage_max=T.DoubleType,
    group_usage=T.DoubleType,
    group_p95=T.DoubleType,
    group_last=T.DoubleType,
    shared_with=T.IntegerType,
    greediest_user=T.StringType,
    greediest_client_id=T.StringType,
    greediest_usage=T.DoubleType,
    members_usage=T.DoubleType,
    usage_rank=T.IntegerType,
)

# Clients whose rows do not carry the limit that was in force.
CLIENTS = f"""
SELECT DISTINCT cluster, quota_key, toValidUTF8(q.user) AS user, toValidUTF8(q.client_id) AS client_id
FROM quota_usage AS q
WHERE {_RANGE} AND {OF_SOURCE} AND limit_known = 0
"""  # noqa: S608 - made of our own words
CLIENTS_SCHEMA = schema(cluster=T.StringType, quota_key=T.StringType, user=T.StringType, client_id=T.StringType)

# The history of limits: a null value means removal. Limits of IP addresses are not read.
LIMITS = f"""
SELECT cluster, quota_key, toValidUTF8(l.user) AS user, toValidUTF8(l.client_id) AS client_id,
       toUnixTimestamp64Milli(valid_from) AS valid_from_ms, value
FROM quota_limits AS l FINAL
WHERE ip = '' AND valid_from < fromUnixTimestamp64Milli({{to_ms:Int64}}) AND quota_key IN ({_in(CLIENT_KEYS)})
  AND ({{cluster:String}} = '' OR cluster = {{cluster:String}})
"""  # noqa: S608 - made of our own words
LIMITS_SCHEMA = schema(
    cluster=T.StringType,
    quota_key=T.StringType,
    user=T.StringType,
    client_id=T.StringType,
    valid_from_ms=T.LongType,
    value=T.DoubleType,
)

# What clients report per window (signals_query), and how their instances changed (instances_query).
_CLIENT_WINDOW = "cluster, user, client_id, window_start_ms"
TELEMETRY = f"""
SELECT * FROM view({SIGNALS}) AS signals FULL OUTER JOIN view({CHANGES}) AS changed USING ({_CLIENT_WINDOW})
{SETTINGS}"""  # noqa: S608 - made of our own words
TELEMETRY_SCHEMA = T.StructType(
    [
        *schema(
            cluster=T.StringType,
            user=T.StringType,
            client_id=T.StringType,
            window_start_ms=T.LongType,
            **dict.fromkeys(client_signals.NAMES, T.DoubleType),
            top_sender=T.StringType,
            top_sender_share=T.DoubleType,
            top_receiver=T.StringType,
            top_receiver_share=T.DoubleType,
            lag_per_min=T.DoubleType,
        ).fields,
        *(
            T.StructField(name, T.ArrayType(T.StringType() if name == "changes" else T.DoubleType()))
            for name in CHANGE.values()
        ),
    ]
)

# The instances of a client: seen when their id was assigned and at each push.
INSTANCES = """
SELECT cluster, toValidUTF8(i.principal) AS user, toValidUTF8(i.client_id) AS client_id,
       toString(i.client_instance_id) AS client_instance_id,
       argMax(toValidUTF8(i.software_name), i.last_seen) AS software_name,
       argMax(toValidUTF8(i.software_version), i.last_seen) AS software_version,
       toUnixTimestamp64Milli(min(i.first_seen)) AS first_seen_ms,
       toUnixTimestamp64Milli(max(i.last_seen)) AS last_seen_ms, toInt64(max(i.terminated)) AS terminated
FROM client_instances AS i
WHERE ({cluster:String} = '' OR cluster = {cluster:String})
GROUP BY cluster, user, client_id, client_instance_id
HAVING first_seen_ms < {to_ms:Int64} AND last_seen_ms >= {seen_from_ms:Int64}
"""
INSTANCES_SCHEMA = schema(
    cluster=T.StringType,
    user=T.StringType,
    client_id=T.StringType,
    client_instance_id=T.StringType,
    software_name=T.StringType,
    software_version=T.StringType,
    first_seen_ms=T.LongType,
    last_seen_ms=T.LongType,
    terminated=T.LongType,
)

# The team of each client that has one, as `headroom serve` matched it last; of a million clients at most.
TEAMS = f"""
SELECT user, client_id, argMax(t.team, t.matched_at) AS team FROM client_teams AS t
GROUP BY user, client_id
HAVING team != '{UNOWNED}'
SETTINGS max_rows_to_group_by = 1000000, group_by_overflow_mode = 'any'
"""  # noqa: S608 - made of our own words
TEAMS_SCHEMA = schema(user=T.StringType, client_id=T.StringType, team=T.StringType)

# Windows that follow TOLD_WINDOWS in each of which the cluster had usage.
OBSERVED = f"""
SELECT cluster, (window_no + ago) * {{window_ms:Int64}} AS window_start_ms, toInt32(1) AS observed_before
FROM (
    SELECT DISTINCT cluster, intDiv(toUnixTimestamp64Milli(ts), {{window_ms:Int64}}) AS window_no
    FROM quota_usage
    WHERE {_RANGE} AND source = {{source:String}} AND quota_key IN ({_in(BYTE_KEYS)})
      AND ({{cluster:String}} = '' OR cluster = {{cluster:String}})
)
ARRAY JOIN range(1, {TOLD_WINDOWS + 1}) AS ago
GROUP BY cluster, window_start_ms
HAVING count() = {TOLD_WINDOWS}
"""  # noqa: S608 - made of our own words
OBSERVED_SCHEMA = schema(cluster=T.StringType, window_start_ms=T.LongType, observed_before=T.IntegerType)

# How many seconds of the limit a rate may hold at once, where the brokers' own configuration was read: the least of a
# cluster's brokers (quota_metrics.windows.QuotaWindow.full_s).
FULL_WINDOWS = """
SELECT cluster, min((quota_window_num - 1) * quota_window_size_ms) / 1000 AS full_s
FROM cluster_facts_now
WHERE quota_window_num > 1 AND quota_window_size_ms > 0
GROUP BY cluster
"""

STAGING: Final = "quota_utilization_staging"

# Windows as Spark computes them. Without an onset lately its columns, cause.ONSET with the prefix, are null.
WINDOWS_SCHEMA = schema(
    cluster=T.StringType,
    source=T.StringType,
    quota_key=T.StringType,
    window_start_ms=T.LongType,
    user=T.StringType,
    client_id=T.StringType,
    broker_id=T.IntegerType,
    matched_entity=T.StringType,
    bucket_user=T.StringType,
    bucket_client_id=T.StringType,
    state=T.StringType,
    limit=T.DoubleType,
    rule_limit=T.DoubleType,
    decided_by=T.StringType,
    implied_limit=T.DoubleType,
    usage=T.DoubleType,
    group_usage=T.DoubleType,
    usage_p95=T.DoubleType,
    usage_max=T.DoubleType,
    **dict.fromkeys(NUMBERS, T.DoubleType),
    value=T.DoubleType,
    held=T.IntegerType,
    throttle_ms=T.DoubleType,
    muted_ms=T.DoubleType,
    elapsed_s=T.IntegerType,
    **dict.fromkeys(client_signals.NAMES, T.DoubleType),
    lag_per_min=T.DoubleType,
    top_sender=T.StringType,
    top_sender_share=T.DoubleType,
    top_receiver=T.StringType,
    top_receiver_share=T.DoubleType,
    instances=T.IntegerType,
    shared_with=T.IntegerType,
    culprit_user=T.StringType,
    culprit_client_id=T.StringType,
    culprit_share=T.DoubleType,
    team=T.StringType,
    usage_rank=T.IntegerType,
    eta_s=T.DoubleType,
    trend_per_min=T.DoubleType,
    burst_credit=T.DoubleType,
    software_name=T.StringType,
    software_version=T.StringType,
    samples=T.LongType,
    is_onset=T.IntegerType,
    onset_onset_kind=T.StringType,
    onset_start_ms=T.LongType,
    onset_broker_id=T.IntegerType,
    onset_limit=T.DoubleType,
    onset_base_limit=T.DoubleType,
    onset_usage=T.DoubleType,
    onset_base_usage=T.DoubleType,
    onset_total_usage=T.DoubleType,
    onset_total_before=T.DoubleType,
    onset_culprit_client_id=T.StringType,
    onset_neighbour_usage=T.DoubleType,
    onset_neighbour_before=T.DoubleType,
    usage_before_onset=T.DoubleType,
    **{name: T.StringType if name == "change" else T.DoubleType for name in cause.CHANGE},
)

# What is null in a String is the empty one in ClickHouse.
_TYPES = {"string": "String", "bigint": "Int64", "int": "Int32", "double": "Nullable(Float64)"}


def _columns(when: TimeRange, thresholds: Thresholds) -> Mapping[str, str]:
    """Each column of quota_utilization, made of the columns of a window, of the `words` of stage_windows and of columns
    before it."""
    own = (
        "cluster", "source", "quota_key", "user", "client_id", "broker_id", "matched_entity", "bucket_user",
        "bucket_client_id", "limit", "usage", "group_usage", "usage_p95", "usage_max", *NUMBERS, "rebalances",
        "records_failed", "records_retried", "outgoing_bytes", "incoming_bytes", "instances", "shared_with",
        "culprit_user", "culprit_client_id", "culprit_share", "implied_limit", "team", "usage_rank", "eta_s",
        "trend_per_min", "burst_credit", "software_name", "software_version", "samples",
    )  # fmt: skip
    return {
        **{name: f"`{name}`" for name in own},
        "window_start": "toDateTime(intDiv(window_start_ms, 1000), 'UTC')",
        "window_s": str(when.window_s),
        "complete": f"window_start_ms + {when.window_ms} <= {when.to_ms}",
        "limit_known": "state <> 'unknown'",
        "usage_avg": "usage",
        "throttle_ms_max": "throttle_ms",
        "throttled_s": "muted_ms / 1000",
        "request_latency_ms_max": "request_latency_ms",
        "queue_time_ms_max": "queue_time_ms",
        "records_lag_max": "records_lag",
        "records_lag_per_min": "lag_per_min",
        **impact.FELT,
        "level": definition.level("held", thresholds),
        "instant_level": definition.level("reached", thresholds),
        "impact": impact.IMPACT,
        "impact_reason": impact.IMPACT_REASON,
        "reason": definition.reason(thresholds),
        "cause": cause.CAUSE,
    }


COLUMNS: Final = tuple(_columns(TimeRange(0, 60_000, 60), Thresholds()))


def stage_windows(when: TimeRange, thresholds: Thresholds) -> str:
    """The `select` of ClickHouse.insert for windows of `when`: WINDOWS_SCHEMA and `run`."""
    words = {
        "reached": definition.reached(thresholds),
        "rule": definition.RULE,
        "onset_cause": cause.LAST_ONSET_CAUSE,
        "earlier_cause": "onset_cause",  # the last onset is the window itself, or an earlier one
    }
    columns = {"run": "run", **_columns(when, thresholds)}
    given = ", ".join(f"`{field.name}` {_TYPES[field.dataType.simpleString()]}" for field in WINDOWS_SCHEMA)
    # Names in one SELECT: the earlier planner plans each nested one twice.
    return f"""({", ".join(f"`{name}`" for name in columns)})
WITH {", ".join(f"{value} AS {name}" for name, value in words.items())}
SELECT {", ".join(value if value.strip("`") == name else f"{value} AS {name}" for name, value in columns.items())}
FROM input('{given}, run String')
{SETTINGS}"""  # noqa: S608 - made of our own words
