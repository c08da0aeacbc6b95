"""Scores forecasts of the recorded history against simple methods and, where installed, a library. Reads usage_1m."""

from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs import cli
from spark_jobs.clickhouse.runs import started
from spark_jobs.clickhouse.source import NothingToReadError, collected
from spark_jobs.jobs.usage_windows import history_of, recorded_usage
from spark_jobs.options import JobOptions
from spark_jobs.time_range import STEP_MS
from spark_jobs.transforms.demand import BUCKET, by_task, recorded
from spark_jobs.transforms.forecast_model import FEWEST_STEPS, HORIZON
from spark_jobs.transforms.forecast_scores import LEADS, ratio, replay

NAME = "backtest"

_ORIGINS = 100  # forecast origins per bucket, spread over the newer half of its history
_SUMS = (
    *(f"{what}_{lead}" for lead in LEADS for what in ("hit", "flagged", "event", "brier", "known")),
    "pinball",
    "coverage",
)
_SCHEMA = ", ".join(("method string", *(f"{name} double" for name in _SUMS), "lead_error double"))


def run(options: JobOptions) -> list[dict[str, Any]]:
    """Runs the job and returns a row of figures per method, ours first. Raises ValueError, JavaError, StoreError."""
    with started(NAME, options) as (job_run, spark, clickhouse):
        history = history_of(recorded_usage(spark, clickhouse, options, job_run))
        job_run.begin("replaying forecasts of each bucket")
        rows = figures(scores(history, options.when.to_ms // STEP_MS - 1))
        if not rows:
            raise NothingToReadError("no bucket has the hours of history that a backtest needs")
        job_run.rows_out = len(rows)
        for row in rows:
            scored_figures = {name: value for name, value in row.items() if isinstance(value, float)}
            job_run.stats.update({f"{row['method']} {name}": value for name, value in scored_figures.items()})
    return rows


def scores(history: DataFrame, last_step: int) -> DataFrame:
    """One row per bucket, origin and method, from `forecast_scores.replay`."""

    def of_task(frame: pd.DataFrame) -> pd.DataFrame:
        rows: list[dict[str, Any]] = []
        for _, group in frame.groupby(list(BUCKET), dropna=False):
            shares = recorded(group, last_step)
            begin, end = max(len(shares.wanted) // 2, FEWEST_STEPS), len(shares.wanted) - HORIZON
            if end > begin:
                origins = np.unique(np.linspace(begin, end, min(_ORIGINS, end - begin)).astype(int)).tolist()
                rows += replay(shares.wanted, shares.first_step, origins)
        return pd.DataFrame(rows, columns=["method", *_SUMS, "lead_error"])

    return by_task(history, last_step).applyInPandas(of_task, _SCHEMA)


def figures(scored: DataFrame) -> list[dict[str, Any]]:
    """Per method: precision, recall and Brier score at each lead (None where the history ends before it), median lead
    error in minutes, pinball loss, coverage of the interval between the 10 % and 90 % quantiles."""
    error = F.expr("percentile(if(isnan(lead_error), null, lead_error), 0.5)").alias("lead_error")
    sums = scored.groupBy("method").agg(
        *(F.sum(name).alias(name) for name in _SUMS), error, F.count("*").alias("forecasts")
    )
    rows = []
    for row in collected(sums).to_pylist():
        named: dict[str, Any] = {"method": row["method"], "forecasts": row["forecasts"]}
        for lead, name in LEADS.items():
            outcomes = row[f"known_{lead}"]
            named[f"precision_{name}"] = ratio(row[f"hit_{lead}"], row[f"flagged_{lead}"]) if outcomes else None
            named[f"recall_{name}"] = ratio(row[f"hit_{lead}"], row[f"event_{lead}"]) if outcomes else None
            named[f"brier_{name}"] = row[f"brier_{lead}"] / outcomes if outcomes else None
        named["lead_error_min"] = None if row["lead_error"] is None else row["lead_error"] * STEP_MS / 60_000
        named["pinball"] = ratio(row["pinball"], row["forecasts"])
        named["coverage"] = ratio(row["coverage"], row["forecasts"])
        rows.append(named)
    return sorted(rows, key=lambda row: (row["method"] != "headroom", row["method"]))


if __name__ == "__main__":
    cli.main("backtest")
