"""First or better quotas from recorded usage: a default for the fleet, quotas of their own for those who are beyond it,
and findings on the rules in force. Reads usage_1m, writes quota_suggestions.

A client belongs to the bucket that the new quota would give it, unless a rule in force takes precedence over the new
default: then it keeps its rule, which is judged by its own buckets. The rules of a suggestion are in
quota_metrics.suggestion; the replay is that of `headroom quotas what-if`.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from exporters.clickhouse.client import ClickHouse
from quota_metrics.config.entities import kafka_configs_line, text
from quota_metrics.minutes.records import records
from quota_metrics.suggestion.suggested_quotas import Demand, KeyUsage, Suggestion, Usage, suggestions
from spark_jobs import cli
from spark_jobs.clickhouse.runs import JobRun, started
from spark_jobs.clickhouse.source import NothingToReadError, collected
from spark_jobs.jobs import fleet, suggested_replay
from spark_jobs.jobs.fleet import Fleets
from spark_jobs.jobs.usage_windows import CountedRange, count_steps, history_of, limits_of, read_usage
from spark_jobs.options import SuggestOptions
from spark_jobs.reports.suggestions import COLUMNS
from spark_jobs.transforms.demand import needs

NAME = "quota_suggest"

_Demands = Mapping[tuple[str, str], list[Demand]]  # by cluster and quota key

# Columns of `needs` in the order of Demand and Usage, and fields of a Suggestion that are columns of its row.
_DEMAND = (
    *("user", "client_id", "broker_id", "need", "demand_low", "demand_high", "demand_source", "demand_peak", "days"),
    *("throttled_share", "limit", "throttled_limit", "matched_entity", "first_day", "last_day"),
)
_USAGE = ("usage_mean", "usage_p95", "usage_peak", "growth_per_week")
_OF_SUGGESTION = (
    *("quota_key", "limit", "suggested_limit", "clients", "days", "throttled_share", "throttled_clients", "reason"),
)


def run(options: SuggestOptions) -> list[dict[str, Any]]:
    """Runs the job and returns a row per suggestion and finding, for each cluster and key the default first. Raises
    ValueError (url), JavaError, StoreError."""
    with started(NAME, options) as (job_run, spark, clickhouse):
        keys = fleet.keys_of(options.source)
        counted = count_steps(clickhouse, options, job_run)
        counted = counted._replace(counts=[count for count in counted.counts if count["quota_key"] in keys])
        if not counted.counts:
            raise NothingToReadError(f"there is no usage of {', '.join(keys)} in this time")
        job_run.begin("reading who the clients are")
        clients = fleet.fleets(spark, clickhouse, counted, options)
        usage = _usage(spark, clickhouse, counted, clients, job_run)
        suggested: suggested_replay.Suggested = {
            (cluster, of_key.quota_key): suggestions(of_key) for cluster, of_key in usage
        }
        if options.replay and options.source == "gateway":
            job_run.begin("replaying the suggested limits")
            suggested = suggested_replay.with_replay(spark, clickhouse, suggested, fleet.days(counted))
        made_at_ms = time.time_ns() // 1_000_000
        moments = {"made_at": made_at_ms, "from_time": options.when.from_ms, "to_time": options.when.to_ms}
        times = {name: datetime.fromtimestamp(ms / 1000, UTC) for name, ms in moments.items()}
        rows = [
            dict.fromkeys(COLUMNS.names) | {"cluster": cluster, "source": options.source, **times} | _row(suggestion)
            for (cluster, _), of_key in suggested.items()
            for suggestion in of_key
        ]
        job_run.store("quota_suggestions", rows, COLUMNS)
    return rows


def _usage(
    spark: SparkSession, clickhouse: ClickHouse, counted: CountedRange, clients: Fleets, job_run: JobRun
) -> Iterator[tuple[str, KeyUsage]]:
    """What is wanted of each key, by cluster. Raises StoreError."""
    job_run.begin("measuring what clients want")
    buckets_of_default = fleet.assigned(clients.placed, counted.when)
    usage = read_usage(spark, clickhouse, counted, buckets_of_default)
    free = _by_key(needs(history_of(usage), counted.when), limited=False)
    kept: _Demands = {}
    if clients.in_force:
        job_run.begin("measuring the quotas in force")
        usage = read_usage(spark, clickhouse, counted, limits_of(clickhouse, counted))
        kept = _by_key(needs(history_of(usage), counted.when), limited=True)
    clients_of = fleet.clients_of_rules(clients.placed)
    for cluster, key in sorted({(count["cluster"], count["quota_key"]) for count in counted.counts}):
        in_force = clients.in_force.get(cluster, fleet.InForce({}, frozenset()))
        of_key = KeyUsage(
            key,
            *clients.dimensions[cluster],
            in_force.rules,
            free.get((cluster, key), []),
            kept.get((cluster, key), []),
            clients_of.get((cluster, key), Counter()),
            frozenset(entity for entity, settled_key in in_force.settled if settled_key == key),
        )
        yield cluster, of_key


def _by_key(measured: DataFrame, *, limited: bool) -> _Demands:
    by_key: dict[tuple[str, str], list[Demand]] = defaultdict(list)
    table = collected(measured.select("cluster", "quota_key", *_DEMAND, *_USAGE))
    for cluster, key, *columns in records(table):
        demand = Demand._make((*columns[: len(_DEMAND)], Usage._make(columns[len(_DEMAND) :])))
        by_key[cluster, key].append(demand if limited else demand._replace(limit=None))
    return by_key


def _row(suggestion: Suggestion) -> dict[str, Any]:
    user, client_id = fleet.stored_names(suggestion.entity)
    key, limit = suggestion.quota_key, suggestion.suggested_limit
    is_changed = suggestion.changes and limit != suggestion.limit
    throttled = suggestion.longest_throttled
    row: dict[str, Any] = {
        **{name: getattr(suggestion, name) for name in _OF_SUGGESTION},
        "kind": str(suggestion.kind),
        "confidence": str(suggestion.confidence),
        "entity": text(suggestion.entity),
        "user": user,
        "client_id": client_id,
        "replay_users": [client.user for client in throttled],
        "replay_client_ids": [client.client_id for client in throttled],
        "replay_before_s": [client.before_s for client in throttled],
        "replay_after_s": [client.after_s for client in throttled],
        "command": kafka_configs_line(suggestion.entity, key, limit) if is_changed else "",
    }
    demand, in_force = suggestion.demand, suggestion.limit
    if demand is None:
        return {**row, "demand_source": ""}
    # Of the bucket that wants most; utilization is a share of the limit in force.
    used = {"mean": demand.usage.mean, "p95": demand.usage.p95, "p99": demand.low, "peak": demand.usage.peak}
    return {
        **row,
        "broker_id": demand.broker_id,
        "demand_low": demand.low,
        "demand_high": demand.high,
        "demand_source": demand.source,
        "demand_peak": demand.peak,
        "throttled_before": demand.throttled_share,
        "growth_per_week": demand.usage.growth_per_week,
        **{f"utilization_{name}": value / in_force if in_force else None for name, value in used.items()},
    }


if __name__ == "__main__":
    cli.main("quota-suggest")
