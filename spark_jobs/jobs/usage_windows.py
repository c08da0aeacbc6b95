"""Reads usage as windows: whole hours from usage_1m, which is brought up to date first, the rest from quota_usage.

Both give the same rows. usage_1m costs a third, and a range of weeks reads what other runs have computed. ClickHouse
recomputes every hour of it that received rows since it was last computed.

Limits that rows lack are resolved here: Kafka's eight levels of precedence as one join. A client has at most one
candidate rule per level of PRECEDENCE (quota_metrics.config.precedence); the history of limits gives the times at which
each was in force, and the most specific one wins (ClientQuotaManager.DefaultQuotaCallback). Clients are resolved once
per change of a limit, not per window. Limits are few: they are broadcast.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial, reduce
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from exporters.clickhouse.client import ClickHouse
from exporters.model import DEFAULT_ENTITY
from quota_metrics.config.precedence import PRECEDENCE, Named
from quota_metrics.levels.definition import LARGEST_RATE
from quota_metrics.levels.windows_query import BAD_NUMBER, IS_USED, SETTINGS, Samples, WindowsQuery, store_minutes
from spark_jobs.clickhouse import queries
from spark_jobs.clickhouse.queries import COUNTS, METERED_KEYS, STORED_RANGE
from spark_jobs.clickhouse.runs import CLIENT_LIMITS, KEY_OF_LIMITS, Run
from spark_jobs.clickhouse.source import (
    StepWeight,
    is_divided,
    read,
    read_slices,
    slices_of_clients,
    slices_of_time,
    stage,
    step_ms,
)
from spark_jobs.time_range import THROTTLE_LOOKBACK_MS, TimeRange

HOUR_MS = 3_600_000
_MARGIN_MS = 60_000  # an insert in progress may become visible after its received_at

_KEYS = ", ".join(f"'{key}'" for key in METERED_KEYS)
_DIRTY = f"""
SELECT hour_ms, newest_ms FROM (
    SELECT intDiv(toUnixTimestamp64Milli(ts), {HOUR_MS}) * {HOUR_MS} AS hour_ms,
           toUnixTimestamp64Milli(max(received_at)) AS newest_ms
    FROM quota_usage
    WHERE ts >= fromUnixTimestamp64Milli({{from_ms:Int64}}) AND ts < fromUnixTimestamp64Milli({{to_ms:Int64}})
      AND source = {{source:String}} AND quota_key IN ({_KEYS})
    GROUP BY hour_ms
) AS u
LEFT JOIN (
    SELECT toInt64(toUnixTimestamp(window_start)) * 1000 AS hour_ms, toUnixTimestamp64Milli(computed_at) AS computed_ms
    FROM usage_1m_windows FINAL WHERE source = {{source:String}}
) AS w USING (hour_ms)
WHERE newest_ms >= computed_ms - {_MARGIN_MS}
ORDER BY hour_ms
"""  # noqa: S608 - made of our own words
_MARK = f"""
INSERT INTO usage_1m_windows (source, window_start, computed_at, bad_rows)
SELECT {{source:String}}, toDateTime(hour_s), fromUnixTimestamp64Milli({{computed_ms:Int64}}),
       mapFromArrays(groupArrayIf(cluster, bad > 0), groupArrayIf(bad, bad > 0))
FROM (
    SELECT intDiv(toInt64(toUnixTimestamp(ts)), 3600) * 3600 AS hour_s, toString(cluster) AS cluster, count() AS bad
    FROM quota_usage
    WHERE ts >= fromUnixTimestamp64Milli({{from_ms:Int64}}) AND ts < fromUnixTimestamp64Milli({{to_ms:Int64}})
      AND source = {{source:String}} AND quota_key IN ({_KEYS}) AND {BAD_NUMBER}
    GROUP BY hour_s, cluster
    UNION ALL
    SELECT arrayJoin(range(intDiv({{from_ms:Int64}}, 1000), intDiv({{to_ms:Int64}}, 1000), 3600)), '', 0
)
GROUP BY hour_s"""  # noqa: S608 - made of our own words

_SAME_MINUTE = "cluster, source, quota_key, window_start, user, client_id, broker_id, gateway_id, ip"
# A client's minute that was computed again may be known under another quota or cadence now, which are in the key of
# usage_1m: what is there under the earlier ones is not used any more.
_REPLACE = f"""
INSERT INTO usage_1m
SELECT * REPLACE (arrayWithConstant(60, nan) AS rates, 0 AS area, 0 AS bytes, 0 AS samples, 0 AS throttle_ms,
                  arrayReduce('intervalLengthSumState', emptyArrayInt64(), emptyArrayInt64()) AS muted,
                  CAST(map(), 'Map(UInt16, Float64)') AS muted_at, [0., 0.] AS implied,
                  fromUnixTimestamp64Milli({{computed_ms:Int64}}) AS computed_at)
FROM usage_1m FINAL
WHERE {STORED_RANGE} AND {IS_USED} AND computed_at < fromUnixTimestamp64Milli({{computed_ms:Int64}})
  AND ({_SAME_MINUTE}) IN (
    SELECT {_SAME_MINUTE} FROM usage_1m
    WHERE {STORED_RANGE} AND computed_at = fromUnixTimestamp64Milli({{computed_ms:Int64}}))"""  # noqa: S608 - our own words


class CountedRange(NamedTuple):
    """A range with its row counts, ordered by time. `stored`: whole hours, read from usage_1m."""

    when: TimeRange
    stored: bool
    counts: list[dict[str, Any]]

    def since(self, from_ms: int) -> list[dict[str, Any]]:
        """The counts from `from_ms` on, without rows before the range whose throttle times may extend into it."""
        first_ms = max(from_ms, self.when.from_ms) - step_ms(self.when)
        return [count for count in self.counts if count["start_ms"] > first_ms]


def ranges(when: TimeRange) -> list[tuple[TimeRange, bool]]:
    """Splits the range into what is read from quota_usage (False) and whole hours that usage_1m holds (True)."""
    first_ms = when.from_ms + -when.from_ms % HOUR_MS
    last_ms = when.to_ms - when.to_ms % HOUR_MS
    if when.window_s % 60 or 3600 % when.window_s or first_ms >= last_ms:
        return [(when, False)]
    bounds = [(when.from_ms, first_ms, False), (first_ms, last_ms, True), (last_ms, when.to_ms, False)]
    return [(replace(when, from_ms=start, to_ms=end), stored) for start, end, stored in bounds if start < end]


def counted(clickhouse: ClickHouse, when: TimeRange, source: str, cluster: str) -> list[CountedRange]:
    """Brings usage_1m up to date and counts the rows. Raises StoreError."""
    return [_counted(clickhouse, each, source, cluster, stored=stored) for each, stored in ranges(when)]


def _counted(clickhouse: ClickHouse, when: TimeRange, source: str, cluster: str, *, stored: bool) -> CountedRange:
    """A part of an hour is read from usage_1m, too, when its rows are gone: quota_usage keeps them for a shorter time,
    and a run over old windows must not publish that there was no usage."""
    if not stored:
        found = _raw_counts(clickhouse, when, source, cluster)
        return found if found.counts or when.window_s % 60 else _minute_counts(clickhouse, when, source, cluster)
    return stored_counts(clickhouse, when, source, cluster)


def stored_counts(clickhouse: ClickHouse, when: TimeRange, source: str, cluster: str) -> CountedRange:
    """The rows of usage_1m, which is brought up to date first. Raises StoreError."""
    refresh(clickhouse, source, when.from_ms, when.to_ms)
    return _minute_counts(clickhouse, when, source, cluster)


def _minute_counts(clickhouse: ClickHouse, when: TimeRange, source: str, cluster: str) -> CountedRange:
    bounds = _count_bounds(when, source, cluster)
    counts = clickhouse.rows(queries.COUNTS_STORED, bounds)
    if counts:
        bad = clickhouse.rows(queries.BAD_STORED, bounds)[0]["bad"]
        counts[-1].update(bad=bad, samples=counts[-1]["samples"] + bad)
    return CountedRange(when, True, counts)


def resolve_limits(spark: SparkSession, clickhouse: ClickHouse, run_of: Run) -> None:
    """Writes the limits of all clients to quota_client_limits, which the usage query joins."""
    when = run_of.when
    bounds = {"from_ms": when.from_ms, "to_ms": when.to_ms, "source": run_of.source, "cluster": run_of.cluster}
    clients = read(spark, clickhouse, queries.CLIENTS, queries.CLIENTS_SCHEMA, [bounds])
    history = read(spark, clickhouse, queries.LIMITS, queries.LIMITS_SCHEMA, [bounds])
    limits = client_limits(clients, history, when.from_ms, when.to_ms).sortWithinPartitions(*KEY_OF_LIMITS)
    stage(limits, clickhouse, CLIENT_LIMITS, run_of)


def _raw_counts(clickhouse: ClickHouse, when: TimeRange, source: str, cluster: str) -> CountedRange:
    bounds = {**_count_bounds(when, source, cluster), "from_ms": max(when.from_ms - THROTTLE_LOOKBACK_MS, 0)}
    return CountedRange(when, False, clickhouse.rows(queries.COUNTS, bounds))


def _count_bounds(when: TimeRange, source: str, cluster: str) -> dict[str, Any]:
    times = {"from_ms": when.from_ms, "to_ms": when.to_ms, "window_ms": when.window_ms, "step_ms": step_ms(when)}
    return {**times, "source": source, "cluster": cluster}


def read_usage(spark: SparkSession, clickhouse: ClickHouse, run_of: Run, counts: list[CountedRange]) -> DataFrame:
    """Rows of USAGE_SCHEMA over all ranges, one Spark task per slice."""
    cores = spark.sparkContext.defaultParallelism
    of_run = {"source": run_of.source, "run": str(run_of.id)}
    frames = []
    for stored in (False, True):
        alike = [each for each in counts if each.stored is stored]
        slices = [one for each in alike for one in slices_of(clickhouse, each, cores, of_run)]
        if slices:
            query = partial(_usage, run_of.when.window_s, stored=stored)
            frames.append(read_slices(spark, clickhouse, query, queries.USAGE_SCHEMA, slices))
    return reduce(DataFrame.unionAll, frames)


def _usage(window_s: int, *, stored: bool, divided: bool) -> str:
    samples = Samples.MINUTES if stored else Samples.USAGE
    return f"{WindowsQuery(window_s, samples, divided).usage()} {SETTINGS}"


def slices_of(
    clickhouse: ClickHouse, counted: CountedRange, cores: int, of_run: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Query parameters of each slice of the range."""
    of_time = slices_of_time(_weights(counted.counts), counted.when, cores)
    return slices_of_clients(clickhouse, ({**each, **of_run} for each in of_time), stored=counted.stored)


def refresh(clickhouse: ClickHouse, source: str, from_ms: int, to_ms: int) -> int:
    """Recomputes the hours that overlap the range and have new rows; returns how many there were. Raises
    StoreError."""
    first_ms, last_ms = from_ms - from_ms % HOUR_MS, to_ms + -to_ms % HOUR_MS
    dirty = [row["hour_ms"] for row in clickhouse.rows(_DIRTY, _bounds(source, first_ms, last_ms))]
    for start_ms, end_ms in hour_ranges(dirty):
        _compute(clickhouse, source, start_ms, end_ms)
    return len(dirty)


def hour_ranges(hours: Iterable[int]) -> list[tuple[int, int]]:
    """Merges adjacent hours, each extended by the hour after it: a throttle time at the end of an hour extends into the
    next one."""
    merged: list[tuple[int, int]] = []
    for hour_ms in sorted({at for hour in hours for at in (hour, hour + HOUR_MS)}):
        if merged and merged[-1][1] == hour_ms:
            merged[-1] = (merged[-1][0], hour_ms + HOUR_MS)
        else:
            merged.append((hour_ms, hour_ms + HOUR_MS))
    return merged


def _compute(clickhouse: ClickHouse, source: str, start_ms: int, end_ms: int) -> None:
    computed_ms = time.time_ns() // 1_000_000
    when = TimeRange(start_ms, end_ms, 60)
    bounds = {
        **_bounds(source, start_ms - THROTTLE_LOOKBACK_MS, end_ms),
        "step_ms": step_ms(when),
        "window_ms": when.window_ms,
        "cluster": "",
    }
    counts = clickhouse.rows(COUNTS, bounds)
    of_time = [{**each, "source": source} for each in slices_of_time(_weights(counts), when, cores=1)]
    for one in slices_of_clients(clickhouse, of_time, stored=False, whole_buckets=False):
        clickhouse.command(store_minutes(divided=is_divided(one)), {**one, "computed_ms": computed_ms})
    computed = {**_bounds(source, start_ms, end_ms), "computed_ms": computed_ms}
    clickhouse.command(_REPLACE, computed)
    clickhouse.command(_MARK, computed)


def _bounds(source: str, from_ms: int, to_ms: int) -> dict[str, Any]:
    return {"source": source, "from_ms": from_ms, "to_ms": to_ms}


def _weights(rows: Iterable[dict[str, Any]]) -> list[StepWeight]:
    return [StepWeight(row["cluster"], row["quota_key"], row["start_ms"], row["weight"]) for row in rows]


_FOR_EVER_MS = 2**63 - 1
_CLIENT = ("cluster", "quota_key", "user", "client_id")
_RULE = ("cluster", "quota_key", "rule_user", "rule_client_id")
_RULES_TYPE = (
    "array<struct<rank:int,valid_from_ms:bigint,valid_to_ms:bigint,limit:double,rule_user:string,"
    "rule_client_id:string,first_ms:bigint>>"
)

NO_LIMIT = -1.0


def intervals(history: DataFrame) -> DataFrame:
    """quota_limits as [valid_from_ms, valid_to_ms) per rule: a value holds until the next row; null means no rule.

    `first_ms` is when the rule was first observed, possibly as absent. Kafka accepts NaN as a value and never throttles
    by it; Long.MAX_VALUE commonly means "unlimited". Such a rule has no limit (-1), but still overrides less specific
    rules.
    """
    rule = Window.partitionBy("cluster", "quota_key", "user", "client_id")
    valid_to_ms = F.lead("valid_from_ms", 1, _FOR_EVER_MS).over(rule.orderBy("valid_from_ms"))
    is_limit = ~F.isnan("value") & (F.col("value") >= 0) & (F.col("value") <= LARGEST_RATE)
    return history.select(
        F.col("cluster"),
        F.col("quota_key"),
        F.col("user").alias("rule_user"),
        F.col("client_id").alias("rule_client_id"),
        F.col("valid_from_ms"),
        valid_to_ms.alias("valid_to_ms"),
        F.min("valid_from_ms").over(rule).alias("first_ms"),
        F.when(F.col("value").isNotNull(), F.when(is_limit, F.col("value")).otherwise(NO_LIMIT)).alias("limit"),
    ).where(F.col("limit").isNotNull())


def client_limits(clients: DataFrame, history: DataFrame, from_ms: int, to_ms: int) -> DataFrame:
    """The quota of each client (cluster, quota_key, user, client_id) in [from_ms, to_ms), as contiguous intervals:
    from_ms, to_ms, state, limit (-1: none), matched_entity as text, and bucket_user and bucket_client_id: clients with
    equal values share the limit.

    `state` is `limited`; `none`: no quota applies; `unknown`: no limit was observed yet, neither in the cluster nor for
    rules that match the client later.
    """
    rules = intervals(history)
    observed = history.groupBy("cluster").agg(F.min("valid_from_ms").alias("observed_ms"))
    matching = F.struct("rank", "valid_from_ms", "valid_to_ms", "limit", "rule_user", "rule_client_id", "first_ms")
    candidates = clients.select(*_CLIENT, F.explode(_candidates()).alias("rule")).select(
        *_CLIENT,
        F.col("rule.rank").alias("rank"),
        F.col("rule.user").alias("rule_user"),
        F.col("rule.client_id").alias("rule_client_id"),
    )
    matched = (
        candidates.join(F.broadcast(rules), on=list(_RULE), how="inner")
        .groupBy(*_CLIENT)
        .agg(F.collect_list(matching).alias("rules"))
    )
    known = clients.join(matched, on=list(_CLIENT), how="left").join(F.broadcast(observed), on="cluster", how="left")
    steps = known.withColumn("rules", F.coalesce("rules", F.array().cast(_RULES_TYPE))).withColumn(
        "steps", F.transform(_changes(from_ms, to_ms), _step)
    )
    return steps.select(*_CLIENT, F.inline(_merged(F.col("steps"), to_ms))).select(
        *_CLIENT, "from_ms", "to_ms", "limit.*"
    )


def _changes(from_ms: int, to_ms: int) -> Column:
    """The times in the range at which the client's rules change, from_ms first."""
    times = [
        F.array(F.lit(from_ms).cast("long"), F.coalesce("observed_ms", F.lit(from_ms).cast("long"))),
        *(F.col("rules")[name] for name in ("valid_from_ms", "valid_to_ms", "first_ms")),
    ]
    inside = F.filter(F.concat(*times), lambda at: (at >= from_ms) & (at < to_ms))
    return F.array_sort(F.array_distinct(inside))


def _step(at: Column) -> Column:
    """The quota of a client from a given time on.

    The most specific rule in force gives the metric's tags; the limit is that of the most specific rule with just the
    dimensions whose tags are not empty (DefaultQuotaCallback: quotaMetricTags, quotaLimit). So a default that matches
    an empty name has no limit itself, and overrides the rules with other dimensions.
    """
    in_force = F.filter("rules", lambda rule: (rule["valid_from_ms"] <= at) & (at < rule["valid_to_ms"]))
    first = F.array_min(in_force)
    tagged_user = _names(first["rank"], dimension=0) & (F.col("user") != "")
    tagged_client_id = _names(first["rank"], dimension=1) & (F.col("client_id") != "")
    winner = F.array_min(
        F.filter(
            in_force,
            lambda rule: (
                (_names(rule["rank"], dimension=0) == tagged_user)
                & (_names(rule["rank"], dimension=1) == tagged_client_id)
            ),
        )
    )
    later = F.exists("rules", lambda rule: rule["first_ms"] > at)
    unseen = F.col("observed_ms").isNull() | (at < F.col("observed_ms")) | later
    limited = winner.isNotNull() & (winner["limit"] >= 0)
    state = F.when(limited, "limited").when(first.isNull() & unseen, "unknown").otherwise("none")
    user = _bucket(F.col("user"), winner["rank"], dimension=0)
    client_id = _bucket(F.col("client_id"), winner["rank"], dimension=1)
    limit = F.struct(
        state.alias("state"),
        F.when(limited, winner["limit"]).otherwise(NO_LIMIT).alias("limit"),
        F.when(limited, _entity(winner["rule_user"], winner["rule_client_id"])).otherwise("").alias("matched_entity"),
        F.when(limited, user).otherwise(F.col("user")).alias("bucket_user"),
        F.when(limited, client_id).otherwise(F.col("client_id")).alias("bucket_client_id"),
    )
    return F.struct(at.alias("from_ms"), limit.alias("limit"))


def _merged(steps: Column, to_ms: int) -> Column:
    """Removes steps without a change and adds the end of each."""
    kept = F.filter(steps, lambda step, i: (i == 0) | (step["limit"] != F.get(steps, i - 1)["limit"]))
    return F.transform(
        kept,
        lambda step, i: F.struct(
            step["from_ms"].alias("from_ms"),
            F.coalesce(F.get(kept, i + 1)["from_ms"], F.lit(to_ms).cast("long")).alias("to_ms"),
            step["limit"].alias("limit"),
        ),
    )


def _candidates() -> Column:
    """The rules that match a client, each with its rank. A default matches an empty name too."""
    levels = []
    for rank, (user, client_id) in enumerate(PRECEDENCE):
        rule = F.struct(
            F.lit(rank).alias("rank"),
            _spelling(F.col("user"), user).alias("user"),
            _spelling(F.col("client_id"), client_id).alias("client_id"),
        )
        levels.append(F.when(_can_match(F.col("user"), user) & _can_match(F.col("client_id"), client_id), rule))
    return F.array_compact(F.array(*levels))


def _spelling(name: Column, match: Named) -> Column:
    """The value of this dimension in quota_limits for a rule of this level."""
    return {
        Named.EXACT: name,
        Named.DEFAULT: F.lit(DEFAULT_ENTITY),
        Named.ABSENT: F.lit(""),
    }[match]


def _can_match(name: Column, match: Named) -> Column:
    """False for an exact match of an empty name: in quota_limits '' means absent."""
    return (name != "") & (name != DEFAULT_ENTITY) if match is Named.EXACT else F.lit(True)


def _entity(user: Column, client_id: Column) -> Column:
    """`user=alice, client-id=<default>`: the rule as kafka-configs names entities."""
    named_user = F.when(user != "", F.concat(F.lit("user="), user))
    named_client_id = F.when(client_id != "", F.concat(F.lit("client-id="), client_id))
    return F.concat_ws(", ", named_user, named_client_id)


def _bucket(name: Column, rank: Column, *, dimension: int) -> Column:
    """The client's own name if the rule has this dimension (also as default), else '': the tags of the broker's sensor.
    A user's quota is one bucket for all its client-ids, a client-id's one for all users."""
    return F.when(_names(rank, dimension=dimension), name).otherwise("")


def _names(rank: Column, *, dimension: int) -> Column:
    """Whether rules of this rank include the dimension."""
    return rank.isin([rank for rank, level in enumerate(PRECEDENCE) if level[dimension] is not Named.ABSENT])
