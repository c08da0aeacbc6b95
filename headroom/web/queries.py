"""The SQL of the pages. Values are parameters ({name:Type}), never text; column names come from closed sets."""

from exporters.identity import CLAIMED, UNREAD_PRINCIPAL
from exporters.model import ANONYMOUS
from quota_metrics.verdict.window import SUMMED

# Columns by which lists of clients may be sorted.
SORT_COLUMNS = (
    "level", "client_id", "user", "quota_key", "cluster", "broker_id", "limit", "usage", "utilization",
    "utilization_p95", "muted_ms", "throttle_ms", "instances",
)  # fmt: skip

_SUMS = ", ".join(f"toFloat64(h.{name}) AS {name}" for name in SUMMED)

# '' stands for everything, unless `exact`: names may be empty.
_NAMED = """
({cluster:String} = '' OR cluster = {cluster:String})
AND ({exact:UInt8} = 0 AND {user:String} = '' OR user = {user:String})
AND ({exact:UInt8} = 0 AND {client_id:String} = '' OR client_id = {client_id:String})
"""
_OF_CLIENT = f"""
{_NAMED}
AND ({{source:String}} = '' OR source = {{source:String}})
AND ({{rule:String}} = '' OR matched_entity = {{rule:String}})
AND ({{team:String}} = '' OR team = {{team:String}})
AND ({{search:String}} = '' OR positionCaseInsensitiveUTF8(client_id, {{search:String}}) > 0
     OR positionCaseInsensitiveUTF8(user, {{search:String}}) > 0
     OR positionCaseInsensitiveUTF8(matched_entity, {{search:String}}) > 0
     OR positionCaseInsensitiveUTF8(software_name, {{search:String}}) > 0
     OR positionCaseInsensitiveUTF8(software_version, {{search:String}}) > 0
     OR {{search:String}} LIKE '% %'
        AND positionCaseInsensitiveUTF8(concat(software_name, ' ', software_version), {{search:String}}) > 0
     OR (cluster, user, client_id) IN (
         SELECT i.cluster, i.principal, i.client_id FROM client_instances AS i
         WHERE {{address:String}} != '' AND i.last_seen > now() - INTERVAL 7 DAY
           AND startsWith(i.source_address, {{address:String}})))
"""  # noqa: S608 - made of our own words
_OF_LEVEL = "(empty({levels:Array(String)}) OR has({levels:Array(String)}, toString(level)))"

# What a token's scope sees (headroom.web.own_view); '' stands for everything.
_OF_SCOPE = """
({scope_user:String} = '' OR user = {scope_user:String}) AND startsWith(client_id, {scope_client_id_prefix:String})
AND ({scope_team:String} = '' OR team = {scope_team:String})
"""


def _clients(more: str, rows: str = "headroom_now") -> str:
    """{order} is filled by the caller from SORT_COLUMNS."""
    return f"""
SELECT * EXCEPT (window_start, {", ".join(SUMMED)}, muted_ms, client_place), toString(window_start) AS window_start,
       {_SUMS}, toFloat64(h.muted_ms) AS muted_ms
FROM {rows} AS h
WHERE {_OF_CLIENT} AND {_OF_LEVEL} AND {more}
ORDER BY {{order}}, utilization DESC, muted_ms DESC, client_place, quota_key, source
LIMIT {{limit:UInt32}} OFFSET {{offset:UInt32}}
"""  # noqa: S608 - made of our own words


HEADROOM = _clients("1")
# With the texts that name no other client.
_OWN_ROWS = "(SELECT * EXCEPT (computed_at, is_worst, pushes, last_seen, is_onset) FROM newest_rows WHERE is_worst)"
OWN = _clients(_OF_SCOPE, _OWN_ROWS)
# Of rows that are far from the first: the columns that nothing is sorted by are read of those that are shown.
FAR = "SETTINGS query_plan_max_limit_for_lazy_materialization = 20000000"

# The length of the brokers' quota windows, where it is known.
QUOTA_WINDOWS = """
SELECT cluster, broker_id, toInt64(quota_window_ms) AS quota_window_ms FROM cluster_facts_now WHERE quota_window_ms > 0
LIMIT 10000
"""

# How many clients are at each level, regardless of the filter on the level; the clusters, regardless of every filter.
SUMMARY = f"""
SELECT sumMapIf(map(toString(level), 1.), {_OF_CLIENT}) AS counts, arraySort(groupUniqArray(100)(cluster)) AS clusters
FROM headroom_now
"""  # noqa: S608 - made of our own words

# Clients by what they have in common; {by} is a column of the closed set GROUPS. Rates of different keys
# are not added, and a name is one of its cluster.
GROUPED = f"""
SELECT {{by}} AS name, cluster, quota_key, toFloat64(count()) AS clients, sum(h.usage) AS all_usage,
       max(h.utilization) AS fullest, toString(max(h.level)) AS worst, toFloat64(sum(h.muted_ms)) AS all_muted_ms,
       toFloat64(countIf(h.level >= 'warn')) AS near, toFloat64(count() OVER ()) AS groups
FROM headroom_now AS h
WHERE {_OF_CLIENT} AND {_OF_LEVEL}
GROUP BY cluster, name, quota_key
ORDER BY max(h.level) DESC, fullest DESC, name, cluster, quota_key
LIMIT {{limit:UInt32}} OFFSET {{offset:UInt32}}
"""  # noqa: S608 - made of our own words
GROUPS = {"user": "user", "team": "team", "rule": "matched_entity"}

# Clients of the last week that are not in the newest 60 seconds; all of them when none were computed for six hours. It
# reads much, so it has two seconds; then it fails, as queries of the managed server's readers do.
SEEN = """
WITH (SELECT if(toUnixTimestamp(window_start) = 0, now('UTC'), window_start) FROM newest_window) AS newest
SELECT cluster, user, client_id, toString(toStartOfSecond(max(ts))) AS last_seen
FROM quota_usage
WHERE ts > now() - INTERVAL 7 DAY AND source = {source:String}
  AND ({cluster:String} = '' OR cluster = {cluster:String})
  AND (positionCaseInsensitiveUTF8(client_id, {search:String}) > 0
       OR positionCaseInsensitiveUTF8(user, {search:String}) > 0)
GROUP BY cluster, user, client_id
HAVING max(ts) < newest
ORDER BY max(ts) DESC
LIMIT {limit:UInt32}
SETTINGS max_execution_time = 2
"""

# What of one client was recorded in the last week.
RECORDED = """
SELECT quota_key, toString(toStartOfSecond(max(ts))) AS last_seen, toUnixTimestamp(max(ts)) AS last_s,
       argMax(tuple(u.limit), ts).1 AS limit, argMax(matched_entity, ts) AS matched_entity
FROM quota_usage AS u
WHERE ts > now() - INTERVAL 7 DAY AND cluster = {cluster:String} AND user = {user:String}
  AND client_id = {client_id:String} AND source = {source:String}
GROUP BY quota_key
ORDER BY quota_key
"""

# A point for each of the last 15 minutes that were computed: (minute from 0 to 14, rate), of the rows of a page, each a
# client at a broker. `place`: of the row, from 1 on.
SPARKLINES = """
WITH arrayMap((cluster, source, quota_key, user, client_id) -> cityHash64(cluster, source, quota_key, user, client_id),
    {clusters:Array(String)}, {sources:Array(String)}, {quota_keys:Array(String)}, {users:Array(String)},
    {client_ids:Array(String)}) AS keys
SELECT place, arraySort(groupArray((minute, rate))) AS points
FROM (
    SELECT toInt32(indexOf(keys, client_key)) AS place, 15 - dateDiff('minute', window_start, now('UTC')) AS minute,
           round(argMax(usage, computed_at)) AS rate
    FROM headroom_minutes
    PREWHERE client_key IN (SELECT arrayJoin(keys))
    WHERE window_start >= toStartOfMinute(now('UTC')) - INTERVAL 15 MINUTE AND window_start < now('UTC')
      AND broker_id = {broker_ids:Array(Int32)}[place]
    GROUP BY place, window_start
)
GROUP BY place
"""

# The clients that share the bucket, and the usage of each, on the client's worst broker.
BUCKET = """
SELECT user, client_id, usage, broker_id, group_usage, limit, muted_ms > 0 AS muted
FROM newest_rows
WHERE cluster = {cluster:String} AND quota_key = {quota_key:String} AND broker_id = {broker_id:Int32}
  AND bucket_user = {bucket_user:String} AND bucket_client_id = {bucket_client_id:String} AND source = {source:String}
ORDER BY usage DESC
LIMIT 50
"""

# What the client itself measured: latency, throttling, queue time, bytes out.
FELT = """
SELECT metric, round(avgIf(value, isFinite(value)), 3) AS mean, round(maxIf(value, isFinite(value)), 3) AS highest,
       uniqExact(client_instance_id) AS instances, toString(max(ts)) AS last
FROM points
WHERE ts > now() - INTERVAL 15 MINUTE AND cluster = {cluster:String} AND principal = {user:String}
  AND client_id = {client_id:String} AND match(metric, 'request[._]latency|throttle|queue[._]time|outgoing[._]byte')
GROUP BY metric
ORDER BY metric
LIMIT 40
"""

INSTANCES = """
SELECT toString(client_instance_id) AS instance, anyLast(i.software_name) AS software_name,
       anyLast(i.software_version) AS software_version, anyLast(i.source_address) AS source_address,
       toString(max(i.last_seen)) AS last_seen, toFloat64(sum(i.pushes)) AS pushes, max(i.terminated) AS terminated
FROM client_instances AS i
WHERE cluster = {cluster:String} AND principal = {user:String} AND client_id = {client_id:String}
GROUP BY client_instance_id
ORDER BY max(i.last_seen) DESC
LIMIT 50
"""

# The newest forecast of a bucket at a broker: utilisation per five minutes from made_at on.
FORECAST = """
SELECT toString(f.made_at) AS made_at, toUnixTimestamp(f.made_at) AS made_s, toString(f.hits_limit_at) AS hits_limit_at,
       toString(f.earliest) AS earliest, toString(f.latest) AS latest, confidence, p10, p50, p90, reason
FROM throttle_forecast AS f
WHERE f.made_at > now() - INTERVAL 1 DAY AND cluster = {cluster:String} AND source = {source:String}
  AND quota_key = {quota_key:String} AND user = {bucket_user:String} AND client_id = {bucket_client_id:String}
  AND broker_id = {broker_id:Int32}
ORDER BY f.made_at DESC
LIMIT 1
"""

CLIENTS = """
SELECT cluster, user, client_id, status, instances, toFloat64(pushes) AS pushes, toString(last_seen) AS last_seen,
       software_name, software_version
FROM telemetry_coverage
WHERE ({cluster:String} = '' OR cluster = {cluster:String}) AND ({user:String} = '' OR user = {user:String})
  AND ({client_id:String} = '' OR client_id = {client_id:String})
  AND ({search:String} = '' OR positionCaseInsensitiveUTF8(client_id, {search:String}) > 0
       OR positionCaseInsensitiveUTF8(user, {search:String}) > 0)
ORDER BY client_place
LIMIT {limit:UInt32} OFFSET {offset:UInt32}
"""

CLIENT_COUNT = """
SELECT toFloat64(count()) AS total
FROM telemetry_coverage
WHERE {search:String} = '' OR positionCaseInsensitiveUTF8(client_id, {search:String}) > 0
      OR positionCaseInsensitiveUTF8(user, {search:String}) > 0
"""

GATEWAY_SHARE = """
SELECT * EXCEPT (samples, last_sample), toFloat64(samples) AS samples, toString(last_sample) AS last_sample
FROM gateway_share
WHERE ({cluster:String} = '' OR cluster = {cluster:String}) AND ({user:String} = '' OR user = {user:String})
  AND ({client_id:String} = '' OR client_id = {client_id:String})
ORDER BY bypassing_rate DESC, cluster, quota_key, user, client_id, broker_id
LIMIT {limit:UInt32}
"""

# Of everybody, or of the entities that the quotas of one client may come from.
LIMITS = """
SELECT cluster, quota_key, user, client_id, ip, argMax(tuple(value), valid_from).1 AS value,
       toString(max(valid_from)) AS since
FROM quota_limits
WHERE ({cluster:String} = '' OR cluster = {cluster:String})
  AND ({of_client:UInt8} = 0 OR ip = '' AND user IN ({user:String}, '', '<default>')
       AND client_id IN ({client_id:String}, '', '<default>'))
GROUP BY cluster, quota_key, user, client_id, ip
HAVING isNotNull(value)
ORDER BY cluster, quota_key, user, client_id, ip
LIMIT {limit:UInt32}
"""

# The number of clients of each rule, and the utilisation of its fullest bucket.
CAUGHT = """
SELECT cluster, quota_key, matched_entity, count() AS clients, max(greatest(utilization, utilization_p95)) AS fullest,
       countIf(level = 'throttled') AS throttled
FROM headroom_now
WHERE matched_entity != ''
GROUP BY cluster, quota_key, matched_entity
"""

# What `headroom quotas suggest` found last; the default of each key first, then by what is wanted.
SUGGESTIONS = """
SELECT cluster, quota_key, kind, user, client_id, `limit`, suggested_limit, utilization_p99, growth_per_week,
       confidence, throttled_share, reason,
       toString(s.made_at) AS made_at, toFloat64(count() OVER ()) AS total
FROM quota_suggestions_now AS s
WHERE ({cluster:String} = '' OR cluster = {cluster:String})
ORDER BY cluster, source, quota_key, indexOf(['default', 'own', 'raise', 'too-high', 'never-used', 'fits'], kind),
         suggested_limit DESC, user, client_id
LIMIT {limit:UInt32}
"""

CHANGES = """
SELECT cluster, entity, quota_key, toString(changed_at) AS changed_at, before, after
FROM quota_changes
WHERE ({cluster:String} = '' OR cluster = {cluster:String})
ORDER BY quota_changes.changed_at DESC
LIMIT 100
"""

JOBS = """
SELECT job, toString(status) AS status, toString(window_from) AS window_from, toString(window_to) AS window_to,
       toString(started_at) AS started_at, toString(finished_at) AS finished_at, error
FROM job_runs FINAL
ORDER BY job_runs.started_at DESC
LIMIT 20
"""

# Which of the known metrics a subscription asks for, and how many of the matching instances sent them.
METRICS = """
SELECT metric, toFloat64(uniq(client_instance_id)) AS instances
FROM series
WHERE last_seen >= fromUnixTimestamp64Milli({since_ms:Int64})
  AND ({all:UInt8} OR arrayExists(prefix -> startsWith(metric, prefix), {prefixes:Array(String)}))
GROUP BY metric
ORDER BY metric
LIMIT 500
"""

# The topics of clients over whole minutes that have ended: estimates of sampled frames. `share`: of what the client
# transfers in this direction.
TOPICS = f"""
SELECT *, toString(toStartOfMinute(now('UTC')) - toIntervalSecond({{seconds:UInt32}})) AS window_start,
       {{seconds:UInt32}} AS window_s
FROM
(
    SELECT cluster, user, client_id, topic, toString(t.direction) AS direction, sum(t.bytes) AS bytes,
           sqrt(sum(pow(t.bytes_error, 2))) AS bytes_error, bytes / {{seconds:UInt32}} AS rate,
           bytes / sum(bytes) OVER (PARTITION BY cluster, user, client_id, direction) AS share,
           toFloat64(sum(t.sampled_frames)) AS sampled_frames
    FROM topic_usage AS t
    WHERE t.window_start >= toStartOfMinute(now('UTC')) - toIntervalSecond({{seconds:UInt32}})
      AND t.window_start < toStartOfMinute(now('UTC')) AND {_NAMED}
    GROUP BY cluster, user, client_id, topic, direction
)
WHERE {{topic:String}} = '' OR topic = {{topic:String}}
ORDER BY bytes DESC, cluster, user, client_id, topic, direction
LIMIT {{limit:UInt32}}
"""  # noqa: S608 - made of our own words

PAYER_NAMES = {"anonymous": ANONYMOUS, "unread": UNREAD_PRINCIPAL, "claimed": CLAIMED}
# As exporters.identity.payer_of has it, but for the network of an IPv6 address: what each sent in 15 minutes.
PAYER_COSTS = """
SELECT if(principal IN ('', {anonymous:String}) OR startsWith(principal, {unread:String})
          OR startsWith(principal, {claimed:String}), source_address, principal) AS payer,
       toFloat64(count()) AS pushes, toFloat64(sum(p.bytes)) AS bytes, toFloat64(sum(p.points)) AS points,
       toFloat64(uniq(client_instance_id)) AS instances
FROM pushes AS p
WHERE received_at > now64(3) - INTERVAL 15 MINUTE
GROUP BY payer
ORDER BY points DESC, payer
LIMIT {limit:UInt32}
"""
