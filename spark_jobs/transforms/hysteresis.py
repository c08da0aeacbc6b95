"""Hysteresis of levels: entered at once, left when the value stays below the threshold for two consecutive windows.

The memory is bounded (MEMORY_WINDOWS), so a level does not depend on where the range of a run starts.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from quota_metrics.levels.thresholds import MARGIN, MEMORY_WINDOWS

LOOKBACK_WINDOWS = MEMORY_WINDOWS + 1  # windows to read before the first reported one


def held(rows: DataFrame, key: Sequence[str], value: str, thresholds: Sequence[float], window_ms: int) -> DataFrame:
    """Adds `held` to rows with `window_start_ms` and `value` (null: 0): how many of the ascending `thresholds` hold.

    A threshold holds from the first window with value >= threshold until the second consecutive window with value <
    threshold - MARGIN. A missing window counts as a value of 0.
    """
    ordered = Window.partitionBy(*key).orderBy("window_start_ms")
    until_now = ordered.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    now = F.coalesce(F.col(value), F.lit(0.0))
    missing = (F.col("window_start_ms") - F.lag("window_start_ms").over(ordered)) / window_ms - 1
    known = rows.withColumns({"_value": now, "_before": F.lag(now).over(ordered), "_missing": missing})
    # The latest window of each kind: a maximum since the first row takes one step per row, one over ten windows ten.
    latest: dict[str, Column] = {}
    for number, threshold in enumerate(thresholds):
        low = threshold - MARGIN
        twice = (F.col("_value") < low) & ((F.col("_missing") >= 1) | (F.col("_before") < low))
        on, off = F.col("_value") >= threshold, twice | (F.col("_missing") >= 2)
        latest[f"_on_{number}"] = F.max(F.when(on, F.col("window_start_ms"))).over(until_now)
        latest[f"_off_{number}"] = F.max(F.when(off, F.col("window_start_ms"))).over(until_now)
    marked = known.withColumns(latest)
    remembered = F.col("window_start_ms") - MEMORY_WINDOWS * window_ms
    holds = [
        F.coalesce(
            (F.col(f"_on_{number}") >= remembered)
            & (F.col(f"_on_{number}") >= F.coalesce(f"_off_{number}", F.lit(-1))),
            F.lit(False),
        ).cast("int")
        for number in range(len(thresholds))
    ]
    return marked.withColumn("held", F.greatest(*(h * (n + 1) for n, h in enumerate(holds)))).drop(
        "_value", "_before", "_missing", *latest
    )
