"""Writes the dashboards beside this file: `python -m deploy.grafana.dashboards`. Classic JSON for Grafana 11.6.

ClickHouse panels want the plug-in grafana-clickhouse-datasource over HTTP or the native protocol, as a reader.
"""


# ruff: noqa: S608 - queries are made of constants

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from deploy.grafana.panels import (
    FILTER,
    HALF,
    WIDE,
    client_rows,
    cluster_variable,
    graph,
    lines,
    linked_rows,
    new_dashboard,
    number,
    quota_changes,
    rows,
    shares,
    variable,
    with_panels,
)
from headroom.web.usage_chart import ARRIVING_S

HERE = Path(__file__).parent
# What levels go by: the greater of both.
VALUE = (
    "(CASE WHEN utilization IS NULL THEN utilization_p95 WHEN utilization_p95 IS NULL"
    " OR utilization >= utilization_p95 THEN utilization ELSE utilization_p95 END)"
)


def fleet() -> Any:
    """Who is close to a limit."""
    made = new_dashboard("headroom-fleet", "Headroom / Fleet").with_variable(cluster_variable())
    panels = [
        client_rows(
            "Closest to a limit",
            "The last window of each client on its worst broker, worst first.",
            f"""SELECT level, cluster, user, client_id, quota_key, round(utilization, 3) AS utilization, usage, limit,
            throttle_ms, matched_entity, reason, impact, impact_reason, cause FROM headroom.headroom_now WHERE {FILTER}
            ORDER BY level = 'throttled' DESC, utilization DESC NULLS LAST LIMIT 100""",
        ),
        client_rows(
            "Throttled now",
            "Clients that brokers delay at this moment, or did in the last minute.",
            f"""SELECT cluster, user, client_id, quota_key, broker_id, is_muted, throttle_ms, throttled_since, limit
            FROM headroom.throttled_now WHERE {FILTER} ORDER BY throttle_ms DESC LIMIT 100""",
            HALF,
        ),
        client_rows(
            "Silent clients",
            "Pushed telemetry before, do not now, and are not muted.",
            f"""SELECT cluster, user, client_id, software_name, software_version, last_seen, silent_s
            FROM headroom.silent_clients WHERE {FILTER} ORDER BY silent_s DESC LIMIT 100""",
            HALF,
        ),
        lines(
            "Rate of the ten largest users",
            "Sum of the brokers' window rates.",
            f"""SELECT toStartOfInterval(ts, INTERVAL 10 SECOND) AS time, user, sum(rate) / uniqExact(ts) AS rate
            FROM headroom.quota_usage WHERE $__timeFilter(ts) AND {FILTER} AND quota_key = 'producer_byte_rate'
            AND user IN (SELECT user FROM headroom.quota_usage WHERE $__timeFilter(ts) AND {FILTER}
            GROUP BY user ORDER BY sum(rate) DESC LIMIT 10) GROUP BY time, user ORDER BY time""",
            "Bps",
        ),
        rows(
            "Client versions with known telemetry bugs",
            "Upgrade these.",
            f"""SELECT software_name, software_version, instances, known_issue FROM headroom.bad_client_versions
            WHERE {FILTER} ORDER BY instances DESC""",
            HALF,
        ),
    ]
    return with_panels(made, panels)


def client() -> Any:
    """One client: usage against its limit, and what it felt."""
    made = new_dashboard("headroom-client", "Headroom / Client").with_variable(cluster_variable())
    made = made.with_variable(
        variable("client", "SELECT DISTINCT client_id FROM headroom.headroom_now ORDER BY client_id", multi=False)
    )
    of = f"{FILTER} AND client_id = ${{client:singlequote}}"
    made = made.annotation(
        quota_changes(
            f"""{FILTER} AND client_id IN ('', '<default>', ${{client:singlequote}})
            AND (user IN ('', '<default>') OR user IN (SELECT user FROM headroom.quota_usage
            WHERE $__timeFilter(ts) AND {of}))"""
        )
    )
    panels = [
        client_rows(
            "Now",
            "The last window of each user with this client id, on its worst broker.",
            f"""SELECT level, cluster, user, client_id, quota_key, broker_id, utilization, usage, limit, reason
            FROM headroom.headroom_now WHERE {of} ORDER BY level DESC, utilization DESC NULLS LAST LIMIT 100""",
        ),
        shares(
            "Share of the limit",
            "By minute and broker: the greater of mean and p95. Dashed: where levels begin by default.",
            f"""SELECT window_start AS time,
            concat(cluster, ' ', user, ' ', quota_key, ' @', toString(broker_id), ' ', source) AS line,
            argMax({VALUE}, computed_at) AS share
            FROM headroom.headroom_minutes WHERE $__timeFilter(window_start) AND {of} AND utilization IS NOT NULL
            GROUP BY time, line ORDER BY time""",
            WIDE,
        ),
        *_measured(of),
        rows(
            "Instances",
            "Running and recent instances of the client.",
            f"""SELECT principal, client_instance_id, software_name, software_version, source_address, first_seen,
            last_seen, pushes FROM headroom.client_instances FINAL WHERE {of} ORDER BY last_seen DESC LIMIT 100""",
        ),
    ]
    return with_panels(made, panels)


def _measured(of: str) -> list[Any]:
    """What brokers and the client measured, as charts. `of`: the condition that selects the client."""
    return [
        # A row holds for its interval, and a second without a row is one without usage; samples of an unknown interval
        # (JMX) stand for the whole step.
        lines(
            "Usage by broker",
            "Of each cluster's users with this client id, added up over gateways and addresses as the pages do.",
            f"""WITH least(5, dateDiff('second', time, now() - INTERVAL {ARRIVING_S} SECOND)) AS stored_s,
            greatest(sum(covered_s), toFloat64(greatest(dateDiff('second', time, max(second)) + 1, stored_s))) AS all_s
            SELECT toStartOfInterval(second, INTERVAL 5 SECOND) AS time, line,
            if(sum(covered_s) = 0, avg(all_rate), sum(all_rate * covered_s) / all_s) AS rate
            FROM (SELECT toStartOfSecond(ts) AS second,
            concat(cluster, ' ', user, ' ', quota_key, ' @', toString(broker_id), ' ', toString(source)) AS line,
            sum(u.rate) AS all_rate, max(interval_ms) / 1000 AS covered_s
            FROM headroom.quota_usage AS u FINAL WHERE $__timeFilter(ts) AND {of}
            GROUP BY second, line) GROUP BY time, line ORDER BY time""",
            "Bps",
        ),
        lines(
            "Limit",
            "The limit in force as each row of usage was written.",
            f"""SELECT toStartOfInterval(ts, INTERVAL 5 SECOND) AS time, quota_key, max(limit) AS quota_limit
            FROM headroom.quota_usage WHERE $__timeFilter(ts) AND {of} AND limit IS NOT NULL
            GROUP BY time, quota_key ORDER BY time""",
            "Bps",
        ),
        lines(
            "Throttle time announced",
            "Longest throttle time of each interval.",
            f"""SELECT toStartOfInterval(ts, INTERVAL 5 SECOND) AS time,
            concat(quota_key, ' @', toString(broker_id)) AS line,
            max(throttle_ms) AS throttle FROM headroom.quota_usage WHERE $__timeFilter(ts) AND {of}
            GROUP BY time, line ORDER BY time""",
            "ms",
        ),
        lines(
            "Request latency as the client measured it",
            "From the client's own telemetry.",
            f"""SELECT toStartOfInterval(ts, INTERVAL 10 SECOND) AS time, metric, max(value) AS latency
            FROM headroom.client_metrics WHERE $__timeFilter(ts) AND {of} AND endsWith(metric, 'latency.max')
            AND NOT isNaN(value) GROUP BY time, metric ORDER BY time""",
            "ms",
        ),
    ]


def quota() -> Any:
    """Rules and how full they are."""
    made = new_dashboard("headroom-quota", "Headroom / Quotas").with_variable(cluster_variable())
    made = made.annotation(quota_changes(FILTER))
    panels = [
        linked_rows(
            "Quotas by user",
            "What each user takes of each quota.",
            f"""SELECT cluster, quota_key, user, usage, bytes, clients, throttled, round(utilization, 3) AS utilization
            FROM headroom.usage_by_user WHERE {FILTER} ORDER BY utilization DESC NULLS LAST LIMIT 100""",
            (
                "Headroom: the user's clients",
                "/?cluster=${__data.fields.cluster:percentencode}&q=${__data.fields.user:percentencode}",
            ),
        ),
        linked_rows(
            "Changes of quotas",
            "Newest first.",
            f"""SELECT changed_at, cluster, entity, quota_key, before, after FROM headroom.quota_changes
            WHERE {FILTER} AND $__timeFilter(changed_at) ORDER BY changed_at DESC LIMIT 100""",
            ("Headroom: the rule", "/quotas?q=${__data.fields.entity:percentencode}"),
            HALF,
        ),
        rows(
            "Verdicts of the Spark job",
            "How many clients were at each level, by window.",
            f"""SELECT window_start AS time, level, count() AS clients FROM headroom.quota_utilization FINAL
            WHERE {FILTER} AND $__timeFilter(window_start) GROUP BY time, level ORDER BY time DESC LIMIT 100""",
            HALF,
        ),
        graph(
            "Utilization of the fullest quotas",
            "kafka_client_quota_utilization_ratio, needs quotas.metrics.enabled.",
            "topk(10, max by (kafka_cluster, quota_type, user, client_id) (kafka_client_quota_utilization_ratio))",
            "percentunit",
            "{{user}} {{client_id}} {{quota_type}}",
            WIDE,
        ),
    ]
    return with_panels(made, panels)


def own_health() -> Any:
    """Headroom itself."""
    made = new_dashboard("headroom-self", "Headroom / Health")
    panels = [
        number("Store", "1: ClickHouse takes rows.", "min(headroom_store_up)", "short"),
        number(
            "Waiting in the spool",
            "Records that are not written yet.",
            'sum(headroom_records{state="buffered"})',
            "short",
        ),
        number("Dropped", "Since the spool began.", "sum(headroom_dropped_total)", "short"),
        graph(
            "Pushes",
            "Answers by error code.",
            "sum by (code) (rate(headroom_push_telemetry_total[$__rate_interval]))",
            "reqps",
            "{{code}}",
        ),
        graph(
            "Records written",
            "Per second.",
            'sum(rate(headroom_records{state="written"}[$__rate_interval]))',
            "short",
            "written",
        ),
        graph(
            "Spool",
            "Against its bound.",
            "sum(headroom_spool_bytes) / sum(headroom_spool_max_bytes)",
            "percentunit",
            "full",
        ),
        graph(
            "Drops",
            "By reason.",
            "sum by (reason) (increase(headroom_dropped_total[$__rate_interval]))",
            "short",
            "{{reason}}",
        ),
        graph("Connections", "Of clients.", "sum(headroom_connections)", "short", "open"),
        graph(
            "OTLP requests",
            "By transport and outcome.",
            "sum by (transport, outcome) (rate(headroom_otlp_requests_total[$__rate_interval]))",
            "reqps",
            "{{transport}} {{outcome}}",
        ),
        rows(
            "Runs of the Spark jobs",
            "Newest first.",
            """SELECT job, status, started_at, finished_at, rows_in, rows_out, error FROM headroom.job_runs FINAL
            ORDER BY started_at DESC LIMIT 50""",
        ),
    ]
    return with_panels(made, panels)


DASHBOARDS = {"fleet": fleet, "client": client, "quota": quota, "health": own_health}


def as_json(name: str) -> str:
    """The committed text of a dashboard."""
    return json.dumps(DASHBOARDS[name](), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def main() -> None:
    """Writes all of them."""
    for name in DASHBOARDS:
        (HERE / f"{name}.json").write_text(as_json(name))


if __name__ == "__main__":
    main()
