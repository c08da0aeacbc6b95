"""Query of a bucket's history: one row per bucket, broker and five minutes, from usage_1m."""

from __future__ import annotations

from pyspark.sql import types as T

from spark_jobs.clickhouse.queries import schema
from spark_jobs.clickhouse.usage_query import SETTINGS, usage

STEP_S = 300


def history(*, divided: bool) -> str:
    """Parameters: those of the usage query."""
    # The row of a bucket's busiest member has the figures of the whole bucket.
    return f"""
SELECT cluster, source, quota_key, bucket_user AS user, bucket_client_id AS client_id, broker_id,
       intDiv(window_start_ms, {STEP_S * 1000}) AS step, limit, matched_entity, group_usage / limit AS mean,
       group_p95 / limit AS p95, muted_ms
FROM view({usage(STEP_S, stored=True, divided=divided)})
WHERE usage_rank = 1 AND state = 'limited' AND limit > 0
{SETTINGS}
"""  # noqa: S608 - made of our own words


HISTORY_SCHEMA = schema(
    cluster=T.StringType,
    source=T.StringType,
    quota_key=T.StringType,
    user=T.StringType,
    client_id=T.StringType,
    broker_id=T.IntegerType,
    step=T.LongType,
    limit=T.DoubleType,
    matched_entity=T.StringType,
    mean=T.DoubleType,
    p95=T.DoubleType,
    muted_ms=T.DoubleType,
)
BUCKET = ("cluster", "source", "quota_key", "user", "client_id", "broker_id")
