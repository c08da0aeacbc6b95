"""First or better quotas from recorded usage: a default for the fleet, quotas of their own for those who are beyond it,
and findings on the rules in force. Reads usage_1m, writes quota_suggestions.

A client belongs to the bucket that the new quota would give it, unless a rule in force takes precedence over the new
default: then it keeps its rule, which is judged by its own buckets. The rules of a suggestion are in
quota_metrics.suggestion; the replay is that of `headroom quotas what-if`.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from exporters.clickhouse.client import ClickHouse
from quota_metrics.config.entities import text
from quota_metrics.config.kafka_configs import kafka_configs_line
from quota_metrics.suggestion.suggestions import Demand, KeyUsage, Suggestion, suggestions
from spark_jobs import cli
from spark_jobs.arrow import collected
from spark_jobs.clickhouse.runs import JobRun
from spark_jobs.clickhouse.source import NothingToReadError
from spark_jobs.jobs import fleet, suggested_replay
from spark_jobs.jobs.fleet import Fleets
from spark_jobs.jobs.history import read_history, stored_hours
from spark_jobs.jobs.start import started
from spark_jobs.jobs.usage_windows import CountedRange, limits_of
from spark_jobs.options import SuggestOptions
from spark_jobs.reports.suggestions import STORED
from spark_jobs.transforms.demand import needs

NAME = "quota_suggest"

_Key = tuple[str, str]  # cluster, quota key
_Demands = Mapping[_Key, list[Demand]]


def run(options: SuggestOptions) -> list[dict[str, Any]]:
    """Runs the job and returns a row per suggestion and finding, for each cluster and key the default first.

    Raises ValueError (url), JavaError, StoreError.
    """
    with started(NAME, options) as (job_run, spark, clickhouse):
        hours = _of_keys(stored_hours(clickhouse, options, job_run), fleet.keys_of(options.source))
        job_run.begin("reading who the clients are")
        found = fleet.fleets(spark, clickhouse, hours, options)
        usage = _usage(spark, clickhouse, hours, found, job_run)
        suggested: suggested_replay.Found = {(each[0], each[1].quota_key): suggestions(each[1]) for each in usage}
        if options.replay and options.source == "gateway":
            job_run.begin("replaying the suggested limits")
            suggested = suggested_replay.with_replay(spark, clickhouse, suggested, fleet.days(hours), options.when)
        rows = list(_rows(suggested, options))
        job_run.rows_out = len(rows)
        if rows:
            table = pa.Table.from_pylist([{**row, "run_id": str(job_run.id)} for row in rows], schema=STORED)
            clickhouse.insert("quota_suggestions", table, token=f"{job_run.id}/suggestions")
    return rows


def _of_keys(hours: CountedRange, keys: Sequence[str]) -> CountedRange:
    """Without keys for which nothing is suggested. Raises NothingToReadError."""
    counts = [count for count in hours.counts if count["quota_key"] in keys]
    if not counts:
        raise NothingToReadError(f"there is no usage of {', '.join(keys)} in this time")
    return hours._replace(counts=counts)


def _usage(
    spark: SparkSession, clickhouse: ClickHouse, hours: CountedRange, found: Fleets, job_run: JobRun
) -> Iterator[tuple[str, KeyUsage]]:
    """What is wanted of each key, by cluster. Raises StoreError."""
    free = _free(spark, clickhouse, hours, found, job_run)
    kept = _kept(spark, clickhouse, hours, job_run) if found.in_force else {}
    clients_of = fleet.clients_of_rules(found.placed)
    for cluster, key in sorted({(count["cluster"], count["quota_key"]) for count in hours.counts}):
        in_force = found.in_force.get(cluster, fleet.InForce({}, frozenset()))
        of_key: _Key = (cluster, key)
        yield (
            cluster,
            KeyUsage(
                key,
                *found.dimensions[cluster],
                in_force.rules,
                free.get(of_key, []),
                kept.get(of_key, []),
                clients_of.get(of_key, Counter()),
                frozenset(entity for entity, of in in_force.settled if of == key),
            ),
        )


def _free(spark: SparkSession, clickhouse: ClickHouse, hours: CountedRange, found: Fleets, job_run: JobRun) -> _Demands:
    """The demands of those whom a default would limit, in the buckets that it would give them. Raises StoreError."""
    job_run.begin("measuring what clients want")
    limits = fleet.assigned(found.placed, hours.when)
    return _by_key(needs(read_history(spark, clickhouse, hours, limits)), limited=False)


def _kept(spark: SparkSession, clickhouse: ClickHouse, hours: CountedRange, job_run: JobRun) -> _Demands:
    """The demands of the buckets of rules in force. Raises StoreError."""
    job_run.begin("measuring the quotas in force")
    limits = limits_of(clickhouse, hours, job_run.cluster)
    return _by_key(needs(read_history(spark, clickhouse, hours, limits)), limited=True)


def _by_key(measured: DataFrame, *, limited: bool) -> _Demands:
    by_key: dict[_Key, list[Demand]] = defaultdict(list)
    for batch in collected(measured).to_batches():
        for row in batch.to_pylist():
            by_key[row["cluster"], row["quota_key"]].append(_demand(row, limited=limited))
    return by_key


def _demand(row: Mapping[str, Any], *, limited: bool) -> Demand:
    return Demand(
        row["user"],
        row["client_id"],
        row["broker_id"],
        row["need"],
        row["demand_low"],
        row["demand_high"],
        row["demand_source"],
        row["demand_peak"],
        row["days"],
        row["throttled_share"],
        row["limit"] if limited else None,
        row["matched_entity"],
    )


def _rows(found: suggested_replay.Found, options: SuggestOptions) -> Iterable[dict[str, Any]]:
    made_at_ms = time.time_ns() // 1_000_000
    moments = {"made_at": made_at_ms, "from_time": options.when.from_ms, "to_time": options.when.to_ms}
    times = {name: datetime.fromtimestamp(ms / 1000, UTC) for name, ms in moments.items()}
    for (cluster, _), each in ((key, one) for key, of in found.items() for one in of):
        yield {"cluster": cluster, "source": options.source, **times, **_row(each)}


def _row(each: Suggestion) -> dict[str, Any]:
    user, client_id = fleet.stored_names(each.entity)
    demand = each.demand
    is_changed = each.changes and each.suggested_limit != each.limit
    return {
        "quota_key": each.quota_key,
        "kind": str(each.kind),
        "entity": text(each.entity),
        "user": user,
        "client_id": client_id,
        "limit": each.limit,
        "suggested_limit": each.suggested_limit,
        "clients": each.clients,
        "broker_id": None if demand is None else demand.broker_id,
        "demand_low": None if demand is None else demand.low,
        "demand_high": None if demand is None else demand.high,
        "demand_source": "" if demand is None else demand.source,
        "demand_peak": None if demand is None else demand.peak,
        "days": each.days,
        "confidence": str(each.confidence),
        "throttled_share": each.throttled_share,
        "throttled_clients": each.throttled_clients,
        "reason": each.reason,
        "command": kafka_configs_line(each.entity, each.quota_key, each.suggested_limit) if is_changed else "",
    }


if __name__ == "__main__":
    cli.main("quota-suggest")
