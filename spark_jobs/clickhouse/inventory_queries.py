"""Queries of client-inventory: SELECT texts and their result schemas."""

from __future__ import annotations

from pyspark.sql import types as T

from spark_jobs.clickhouse.queries import schema

_CLUSTER = "({cluster:String} = '' OR cluster = {cluster:String})"

INSTANCES = f"""
SELECT cluster, toValidUTF8(i.principal) AS user, toValidUTF8(i.client_id) AS client_id,
       argMax(toValidUTF8(i.software_name), i.last_seen) AS software_name,
       argMax(toValidUTF8(i.software_version), i.last_seen) AS software_version,
       toUnixTimestamp64Milli(max(i.last_seen)) AS last_seen_ms, toInt64(max(i.terminated)) AS terminated,
       toInt64(sum(i.pushes)) AS pushes, toInt64(sum(i.points)) AS points
FROM headroom.client_instances AS i
WHERE {_CLUSTER}
GROUP BY cluster, user, client_id, i.client_instance_id
HAVING last_seen_ms >= {{from_ms:Int64}}
"""  # noqa: S608 - made of our own words
INSTANCES_SCHEMA = schema(
    cluster=T.StringType,
    user=T.StringType,
    client_id=T.StringType,
    software_name=T.StringType,
    software_version=T.StringType,
    last_seen_ms=T.LongType,
    terminated=T.LongType,
    pushes=T.LongType,
    points=T.LongType,
)

# Cardinality: the number of a client's series, and the metric with the most series.
SERIES = f"""
SELECT cluster, user, client_id, toInt64(sum(found)) AS series, argMax(metric, found) AS costliest_metric
FROM (
    SELECT cluster, toValidUTF8(s.principal) AS user, toValidUTF8(s.client_id) AS client_id, metric,
           uniqExact(series_id) AS found
    FROM headroom.series AS s
    WHERE {_CLUSTER} AND last_seen >= fromUnixTimestamp64Milli({{from_ms:Int64}})
    GROUP BY cluster, user, client_id, metric
)
GROUP BY cluster, user, client_id
"""  # noqa: S608 - made of our own words
SERIES_SCHEMA = schema(
    cluster=T.StringType,
    user=T.StringType,
    client_id=T.StringType,
    series=T.LongType,
    costliest_metric=T.StringType,
)

TRAFFIC = f"""
SELECT cluster, toValidUTF8(u.user) AS user, toValidUTF8(u.client_id) AS client_id,
       toUnixTimestamp64Milli(max(ts)) AS last_traffic_ms
FROM headroom.quota_usage AS u
WHERE {_CLUSTER} AND source = {{source:String}} AND ts >= fromUnixTimestamp64Milli({{from_ms:Int64}})
  AND ts < fromUnixTimestamp64Milli({{to_ms:Int64}})
GROUP BY cluster, user, client_id
"""  # noqa: S608 - made of our own words
TRAFFIC_SCHEMA = schema(cluster=T.StringType, user=T.StringType, client_id=T.StringType, last_traffic_ms=T.LongType)

ISSUES = f"""
SELECT cluster, toValidUTF8(software_name) AS software_name, toValidUTF8(software_version) AS software_version,
       any(known_issue) AS known_issue
FROM headroom.client_software
WHERE {_CLUSTER}
GROUP BY cluster, software_name, software_version
"""  # noqa: S608 - made of our own words
ISSUES_SCHEMA = schema(
    cluster=T.StringType, software_name=T.StringType, software_version=T.StringType, known_issue=T.StringType
)
