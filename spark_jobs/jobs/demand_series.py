"""The recorded demand of each bucket as a series of numbers, from which the jobs forecast."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from pyspark.sql import DataFrame, GroupedData
from pyspark.sql import functions as F

from spark_jobs.transforms.demand import BUCKET, wanted_at_least
from spark_jobs.transforms.forecast_model import regular

# Enough buckets per task to amortise the start of a Python worker; enough tasks to keep each one small.
_TASKS = 64


def by_task(history: DataFrame, last_step: int) -> GroupedData:
    """The rows up to `last_step` with what clients wanted (`wanted`), each bucket within one of _TASKS groups."""
    task = F.pmod(F.xxhash64(*BUCKET), F.lit(_TASKS)).alias("task")
    return history.where(F.col("step") <= last_step).withColumn("wanted", wanted_at_least()).groupBy(task)


class RecordedShares(NamedTuple):
    """A bucket, one value per step from `first_step` on, as shares of its newest limit: a limit that changed is no
    change of what clients do."""

    wanted: npt.NDArray[np.float64]
    used: npt.NDArray[np.float64]
    first_step: int
    limit: float


def recorded(bucket: pd.DataFrame, last_step: int) -> RecordedShares:
    """From the rows of one bucket in a group of `by_task`."""
    steps, limits = bucket["step"].to_numpy(np.int64), bucket["limit"].to_numpy(float)
    newest = float(limits[steps.argmax()])
    wanted, first = regular(steps, bucket["wanted"].to_numpy(float) * limits / newest, last_step)
    used, _ = regular(steps, bucket["p95"].to_numpy(float) * limits / newest, last_step)
    return RecordedShares(wanted, used, first, newest)
