"""Query of capacity-report's what-if: per client and broker the seconds in which its bucket is over the limit."""

from __future__ import annotations

from pyspark.sql import types as T

from spark_jobs.clickhouse.history_query import STEP_S
from spark_jobs.clickhouse.queries import schema
from spark_jobs.clickhouse.usage_query import SETTINGS, buckets

SUGGESTED = "suggested"  # state of a row of quota_client_limits: the limit that a run suggests for a bucket


def replay(*, divided: bool) -> str:
    """Parameters: those of the usage query; `run` is the run that staged the suggested limits."""
    return f"""
SELECT cluster, source, quota_key, bucket_user AS user, bucket_client_id AS client_id, broker_id,
       member.1 AS member_user, member.2 AS member_client_id, sum(before) AS before_s, sum(after) AS after_s
FROM (
    SELECT cluster, source, quota_key, bucket_user, bucket_client_id, broker_id, members,
           toInt64(arrayCount(rate -> rate > row_limit, rates)) AS before,
           toInt64(arrayCount(rate -> rate > suggested, rates)) AS after
    FROM view({buckets(STEP_S, stored=True, divided=divided)}) AS used
    INNER JOIN (
        SELECT user AS bucket_user, client_id AS bucket_client_id, any(limit) AS suggested
        FROM headroom.quota_client_limits
        WHERE run = {{run:String}} AND cluster = {{cluster:String}} AND quota_key = {{quota_key:String}}
          AND state = '{SUGGESTED}'
        GROUP BY bucket_user, bucket_client_id
    ) AS suggestion USING (bucket_user, bucket_client_id)
    WHERE state = 'limited' AND before + after > 0
)
ARRAY JOIN members AS member
WHERE member.3 > 0
GROUP BY cluster, source, quota_key, user, client_id, broker_id, member_user, member_client_id
{SETTINGS}
"""  # noqa: S608 - made of our own words


REPLAY_SCHEMA = schema(
    cluster=T.StringType,
    source=T.StringType,
    quota_key=T.StringType,
    user=T.StringType,
    client_id=T.StringType,
    broker_id=T.IntegerType,
    member_user=T.StringType,
    member_client_id=T.StringType,
    before_s=T.LongType,
    after_s=T.LongType,
)
