"""What the jobs read from ClickHouse and write to it: the SELECT texts and the schemas that they yield.

ClickHouse aggregates to windows first: Spark never sees a raw point or sample. Times are whole numbers (ms since the
epoch), so that no time zone can creep in. Tables are named as in deploy/clickhouse; on a cluster the same names are
Distributed tables. A replay may have left a row twice: FINAL, or aggregates that do not mind, keep it from counting
double.
"""

from __future__ import annotations

from pyspark.sql import types as T

from exporters.model import QuotaKey

BYTE_KEYS = (QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE)
CLIENT_KEYS = (*BYTE_KEYS, QuotaKey.REQUEST_PERCENTAGE, QuotaKey.CONTROLLER_MUTATION_RATE)
USAGE_SOURCES = ("gateway", "jmx", "client")

# How long before a window's end a client instance may have been seen last. A client muted by its throttling cannot
# push, and one that was told to push every 5 minutes is silent for most windows.
INSTANCE_LOOKBACK_S = 3600

PRODUCE_THROTTLE = "org.apache.kafka.producer.produce.throttle.time.max"
FETCH_THROTTLES = (
    "org.apache.kafka.consumer.fetch.manager.fetch.throttle.time.max",
    "org.apache.kafka.consumer.share.fetch.manager.fetch.throttle.time.max",
)


def _schema(**columns: type[T.DataType]) -> T.StructType:
    return T.StructType([T.StructField(name, kind()) for name, kind in columns.items()])


def _in(values: tuple[str, ...]) -> str:
    return ", ".join(f"'{value}'" for value in values)


_WINDOW = (
    "intDiv(toUnixTimestamp64Milli(ts) - {from_ms:Int64}, {window_ms:Int64}) * {window_ms:Int64} + {from_ms:Int64}"
)
_SLICE = "ts >= fromUnixTimestamp64Milli({slice_from_ms:Int64}) AND ts < fromUnixTimestamp64Milli({slice_to_ms:Int64})"

# The sixtieths of a window in which there are samples, as bits: clients that share a quota need not run side by side.
_SLOTS = (
    "groupBitOr(bitShiftLeft(toUInt64(1), intDiv((toUnixTimestamp64Milli(ts) - {from_ms:Int64}) % {window_ms:Int64}"
    " * 60, {window_ms:Int64})))"
)

# One row per client, quota key, broker and window in which it was active. The mean is over the samples: a client that
# is silent has none. An idle meter reads NaN (JMX): no rate. `throttled_s`: how long the broker told the client to
# hold back, at most the window.
USAGE = f"""
SELECT cluster, quota_key, user, client_id, broker_id, {_WINDOW} AS window_start_ms,
       avg(ifNotFinite(u.rate, 0)) AS usage_avg, quantileExact(0.95)(ifNotFinite(u.rate, 0)) AS usage_p95,
       max(ifNotFinite(u.rate, 0)) AS usage_max, max(ifNotFinite(u.throttle_ms, 0)) AS throttle_ms,
       least(sum(ifNotFinite(u.throttle_ms, 0)), toFloat64({{window_ms:Int64}})) / 1000 AS throttled_s,
       toInt64({_SLOTS}) AS slots
FROM headroom.quota_usage AS u FINAL
WHERE {_SLICE} AND quota_key IN ({_in(CLIENT_KEYS)}) AND source = {{source:String}}
GROUP BY cluster, quota_key, user, client_id, broker_id, window_start_ms
"""  # noqa: S608 - made of our own words
USAGE_SCHEMA = _schema(
    cluster=T.StringType,
    quota_key=T.StringType,
    user=T.StringType,
    client_id=T.StringType,
    broker_id=T.IntegerType,
    window_start_ms=T.LongType,
    usage_avg=T.DoubleType,
    usage_p95=T.DoubleType,
    usage_max=T.DoubleType,
    throttle_ms=T.DoubleType,
    throttled_s=T.DoubleType,
    slots=T.LongType,
)

# The history of limits: a null value is the removal. Limits of addresses (ip) are another matter.
LIMITS = f"""
SELECT cluster, quota_key, user, client_id, toUnixTimestamp64Milli(valid_from) AS valid_from_ms, value
FROM headroom.quota_limits FINAL
WHERE ip = '' AND valid_from < fromUnixTimestamp64Milli({{to_ms:Int64}}) AND quota_key IN ({_in(CLIENT_KEYS)})
"""  # noqa: S608 - made of our own words
LIMITS_SCHEMA = _schema(
    cluster=T.StringType,
    quota_key=T.StringType,
    user=T.StringType,
    client_id=T.StringType,
    valid_from_ms=T.LongType,
    value=T.DoubleType,
)

# What the clients themselves felt, per window: the longest throttle times. A gauge without a sample is NaN. `.max`
# only: Java's `.avg` is diluted by each unthrottled response.
TELEMETRY = f"""
SELECT cluster, principal AS user, client_id, {_WINDOW} AS window_start_ms,
       maxOrNullIf(value, metric = '{PRODUCE_THROTTLE}') AS produce_throttle_ms,
       maxOrNullIf(value, metric IN ({_in(FETCH_THROTTLES)})) AS fetch_throttle_ms
FROM headroom.client_metrics
WHERE {_SLICE} AND metric IN ({_in((PRODUCE_THROTTLE, *FETCH_THROTTLES))}) AND isFinite(value) AND bitAnd(flags, 1) = 0
GROUP BY cluster, user, client_id, window_start_ms
"""  # noqa: S608 - made of our own words
TELEMETRY_SCHEMA = _schema(
    cluster=T.StringType,
    user=T.StringType,
    client_id=T.StringType,
    window_start_ms=T.LongType,
    produce_throttle_ms=T.DoubleType,
    fetch_throttle_ms=T.DoubleType,
)

# The instances behind a client: seen when their id was handed out or when they pushed.
INSTANCES = """
SELECT cluster, principal AS user, client_id, toString(client_instance_id) AS client_instance_id,
       argMax(software_name, last_seen) AS software_name, argMax(software_version, last_seen) AS software_version,
       toUnixTimestamp64Milli(min(first_seen)) AS first_seen_ms,
       toUnixTimestamp64Milli(max(last_seen)) AS last_seen_ms, toInt64(max(terminated)) AS terminated
FROM headroom.client_instances
GROUP BY cluster, user, client_id, client_instance_id
HAVING first_seen_ms < {to_ms:Int64} AND last_seen_ms >= {seen_from_ms:Int64}
"""
INSTANCES_SCHEMA = _schema(
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

UTILIZATION = "quota_utilization"
UTILIZATION_SCHEMA = _schema(
    cluster=T.StringType,
    quota_key=T.StringType,
    window_start=T.TimestampType,
    window_s=T.IntegerType,
    user=T.StringType,
    client_id=T.StringType,
    matched_entity=T.StringType,
    limit=T.DoubleType,
    broker_id=T.IntegerType,
    usage=T.DoubleType,
    usage_avg=T.DoubleType,
    usage_p95=T.DoubleType,
    usage_max=T.DoubleType,
    group_usage=T.DoubleType,
    shared_with=T.IntegerType,
    utilization=T.DoubleType,
    throttle_ms_max=T.DoubleType,
    throttled_s=T.DoubleType,
    client_throttle_ms_max=T.DoubleType,
    instances=T.IntegerType,
    software_name=T.StringType,
    software_version=T.StringType,
    eta_s=T.DoubleType,
    level=T.StringType,
    reason=T.StringType,
    run_id=T.BinaryType,
    run_version=T.LongType,
)

JOB_RUNS = "job_runs"
