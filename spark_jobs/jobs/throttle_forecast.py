"""Forecasts when each bucket reaches its limit at each broker. Reads usage_1m, writes throttle_forecast."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from quota_metrics.config.entities import entity_text
from quota_metrics.config.resolution import CLIENT_KEYS
from quota_metrics.suggestion.dimension import OF_ONE_RUN
from quota_metrics.verdict.thresholds import LARGEST_RATE
from spark_jobs import cli
from spark_jobs.clickhouse.runs import started
from spark_jobs.clickhouse.source import collected
from spark_jobs.jobs.fleet import rules_in_force
from spark_jobs.jobs.usage_windows import history_of, recorded_usage
from spark_jobs.options import ClientOptions
from spark_jobs.reports.tables import FORECAST_COLUMNS
from spark_jobs.time_range import STEP_MS
from spark_jobs.transforms.demand import BUCKET, by_task, recorded
from spark_jobs.transforms.forecast_members import DAY
from spark_jobs.transforms.forecast_model import FEWEST_STEPS, HORIZON, Forecast, forecast

NAME = "throttle_forecast"

Limits = Mapping[str, Mapping[tuple[str, str], float]]  # by cluster, of a quota key and the text of an entity

_HELD_BACK = 0.01  # share of the limit by which demand exceeds usage, from which a reason names both

_SCHEMA = (
    "cluster string, source string, quota_key string, user string, client_id string, broker_id int, limit double,"
    " utilization double, wanted double, hits_steps int, earliest_steps int, latest_steps int, confidence double,"
    " within_24h double, within_7d double, next_hit_steps int, p10 array<double>, p50 array<double>, p90 array<double>"
)


def run(options: ClientOptions) -> list[dict[str, Any]]:
    """Runs the job and returns the forecasts, ordered by the time at which the limit is reached. Raises ValueError
    (url), JavaError, StoreError."""
    with started(NAME, options) as (job_run, spark, clickhouse):
        usage = recorded_usage(spark, clickhouse, options, job_run)
        job_run.begin("forecasting each bucket")
        now_ms = options.when.to_ms // STEP_MS * STEP_MS
        limits = {
            cluster: {
                (quota_key, entity_text(entity)): limit
                for entity, values in in_force.rules.items()
                for quota_key, limit in values.items()
                if limit <= LARGEST_RATE
            }
            for cluster, in_force in rules_in_force(clickhouse, options.when, options.cluster).items()
        }
        made = collected(forecasts(history_of(usage), now_ms // STEP_MS - 1, limits)).to_pylist()
        far = datetime.max.replace(tzinfo=UTC)
        rows = sorted(
            (_report_row(row, now_ms) for row in made),
            key=lambda row: (
                *(row["hits_limit_at"] or far, row["next_hit_at"] or far, -row["confidence"]),
                *(row[name] for name in BUCKET),
            ),
        )
        job_run.store("throttle_forecast", rows, FORECAST_COLUMNS)
        if options.user or options.client_id:
            buckets = buckets_of(usage, options.user, options.client_id)
            rows = [row for row in rows if tuple(row[name] for name in BUCKET) in buckets]
    return rows[: options.top or None]


def buckets_of(usage: DataFrame, user: str, client_id: str) -> set[tuple[Any, ...]]:
    """BUCKET of each that a user or a client id takes from ('': any). A quota of a user has no client id, and one of a
    client id has no user: the names of a bucket do not say whose it is."""
    for name, chosen in (("user", user), ("client_id", client_id)):
        if chosen:
            usage = usage.where(F.col(name) == chosen)
    names = ("cluster", "source", "quota_key", "bucket_user", "bucket_client_id", "broker_id")
    return {tuple(row.values()) for row in collected(usage.select(*names).distinct()).to_pylist()}


def forecasts(history: DataFrame, last_step: int, limits: Limits) -> DataFrame:
    """The forecast of what the clients of each bucket want from each broker after `last_step` (five minutes each, since
    the epoch), from rows of `history_of`, as shares of `limits`, which are in force then. Buckets with less than four
    hours of history, those whose rule was removed and runs that ended a day ago are left out. A cluster of which no
    rules were recorded is not in `limits`: there the limit of the newest row counts."""

    def of_task(frame: pd.DataFrame) -> pd.DataFrame:
        rows = []
        for key, group in frame.groupby(list(BUCKET), dropna=False):
            newest = group.iloc[int(group["step"].to_numpy().argmax())]
            if newest["step"] < last_step - DAY and OF_ONE_RUN.search(newest["client_id"]):
                continue
            limit, in_force = None, limits.get(newest["cluster"])
            # A quota callback's limit names no entity.
            if in_force is not None and newest["matched_entity"] and newest["quota_key"] in CLIENT_KEYS:
                limit = in_force.get((newest["quota_key"], newest["matched_entity"]))
                if limit is None:
                    continue
            shares = recorded(group, last_step, limit)
            if len(shares.wanted) >= FEWEST_STEPS:
                used, demand = float(shares.used[-1]), float(shares.wanted[-1])
                made = forecast(shares.wanted, shares.first_step)
                rows.append((*key, shares.limit, used, demand, *_facts(made, demand)))
        return pd.DataFrame(rows, columns=[part.split()[0] for part in _SCHEMA.split(", ")])

    return by_task(history, last_step).applyInPandas(of_task, _SCHEMA)


def _facts(made: Forecast, now: float) -> tuple[Any, ...]:
    reached = now >= 1.0
    steps = [0] * 3 if reached else [made.likely_step(), made.step_of(2), made.step_of(0)]
    confidence = 1.0 if reached else made.reached_within(HORIZON)
    later: tuple[float | None, ...] = (made.reached_within(DAY), made.reached_within(7 * DAY), made.next_step())
    if reached:
        later = (1.0, 1.0, 0)
    elif made.hours is None:
        later = (None, None, None)
    return (*steps, confidence, *later, *(made.quantiles[i].tolist() for i in range(3)))


def _report_row(row: dict[str, Any], now_ms: int) -> dict[str, Any]:
    made_at = datetime.fromtimestamp(now_ms / 1000, UTC)
    names = {
        "hits_limit_at": "hits_steps",
        "earliest": "earliest_steps",
        "latest": "latest_steps",
        "next_hit_at": "next_hit_steps",
    }
    moments: dict[str, datetime | None] = {}
    for name, column in names.items():
        steps = row.pop(column)
        is_expected = steps is not None and not math.isnan(steps)
        moments[name] = made_at + timedelta(milliseconds=STEP_MS * steps) if is_expected else None
    wanted = row.pop("wanted")
    reported = {**row, "made_at": made_at, **moments}
    return {**reported, "reason": explain_forecast(reported, wanted)}


def explain_forecast(row: dict[str, Any], wanted: float) -> str:
    """The reason of a row. `wanted`: demand, like utilization a share of the limit; below it neither is 100 %."""
    hours = HORIZON * STEP_MS // 3_600_000
    used, demand = (f"{min(share, 0.99) if share < 1 else share:.0%}" for share in (row["utilization"], wanted))
    now, chance = f"at {used} of the limit", f"{row['confidence']:.0%}"
    if wanted > row["utilization"] + _HELD_BACK:
        now += f" (throttled, wanting about {demand})"
    if wanted >= 1:
        return f"{now}: it is reached"
    if row["hits_limit_at"] is None:
        later = ""
        if row["within_7d"] is not None and row["next_hit_at"] is None:
            later = f", nor within 7 days ({row['within_7d']:.0%} likely)"
        elif row["within_7d"] is not None:
            chances = f"within 24 h {row['within_24h']:.0%}, within 7 days {row['within_7d']:.0%} likely"
            later = f"; {chances}, next about {row['next_hit_at']:%a %H:%M} UTC"
        return f"{now}: not expected to reach it within {hours} h ({chance} likely){later}"
    earliest = f"{row['earliest']:%H:%M}" if row["earliest"] else "-"
    latest = f"{row['latest']:%H:%M}" if row["latest"] else "later than that"
    when = f"{row['hits_limit_at']:%H:%M} UTC ({earliest} to {latest})"
    return f"{now}: expected to reach it at {when}, {chance} likely within {hours} h"


if __name__ == "__main__":
    cli.main("throttle-forecast")
