"""When a bucket reaches its limit: utilisation in steps of five minutes, forecast. NumPy only, no Spark, no clock.

The seasonal part is the median by hour of the week, shrunk to that by hour of the day while weeks are few. What is left
is followed by a damped Theil-Sen trend over the last hour. The errors of the same forecast at earlier moments of the
history, each a whole path, say how far off it may be: quantiles per step, and how many paths reach the limit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

STEP_MS = 300_000
HORIZON = 36  # steps: three hours
LIMIT = 1.0
QUANTILES = (0.1, 0.5, 0.9)
FEWEST_STEPS = 48  # of history: four hours

_TREND_STEPS = 12
_LEVEL_STEPS = 4  # the newest ones say where it is now
_DAMPING = 0.97  # of the trend, per step
_FADING = 0.99  # of the distance from the season, per step
_SHRINK = 2.0  # weeks of data at which the hour of the week counts as much as the hour of the day
_PATHS = 240  # earlier moments whose errors are looked at
_HOUR_MS = 3_600_000
_PAIRS = np.triu_indices(_TREND_STEPS, 1)


@dataclass(frozen=True, slots=True)
class Forecast:
    """Utilisation for the next HORIZON steps. `paths` are equally likely futures, one per row."""

    quantiles: Array  # QUANTILES x HORIZON
    paths: Array

    def reached_within(self, steps: int) -> float:
        """The probability that the limit is reached within so many steps."""
        return float((self.paths[:, :steps].max(axis=1) >= LIMIT).mean())

    def step_of(self, quantile: int) -> int | None:
        """The first step (1 is the next) at which this one of QUANTILES reaches the limit; None: not in sight."""
        reached = np.flatnonzero(self.quantiles[quantile] >= LIMIT)
        return int(reached[0]) + 1 if len(reached) else None


def season(values: Array, first_step: int) -> Array:
    """The median by hour of the week, 168 of them. `first_step` counts from the epoch."""
    hours = ((first_step + np.arange(len(values))) * STEP_MS // _HOUR_MS) % 168
    overall = float(np.median(values))
    daily = np.array([_shrunk(values[hours % 24 == hour], overall) for hour in range(24)])
    return np.array([_shrunk(values[hours == hour], daily[hour % 24]) for hour in range(168)])


def _shrunk(values: Array, towards: float) -> float:
    weight = max(len(values) * STEP_MS / _HOUR_MS - 1, 0.0)  # one day or week alone is no season
    return (weight * float(np.median(values)) + _SHRINK * towards) / (weight + _SHRINK) if len(values) else towards


def seasonal(table: Array, steps: Array) -> Array:
    """The season at steps since the epoch, going evenly from the middle of an hour to that of the next."""
    hours = (steps + 0.5) * STEP_MS / _HOUR_MS - 0.5
    before = np.floor(hours).astype(int)
    share = hours - before
    mixed: Array = table[before % 168] * (1 - share) + table[(before + 1) % 168] * share
    return mixed


def point_forecasts(values: Array, first_step: int, table: Array, origins: npt.NDArray[np.int64]) -> Array:
    """The forecast at each origin (index of the last known value, at least 11): origins x HORIZON."""
    steps = first_step + np.arange(len(values))
    rest = values - seasonal(table, steps.astype(float))
    recent = rest[origins[:, None] + np.arange(1 - _TREND_STEPS, 1)]
    slopes = (recent[:, _PAIRS[1]] - recent[:, _PAIRS[0]]) / (_PAIRS[1] - _PAIRS[0])
    slope = np.median(slopes, axis=1)
    moved = recent - slope[:, None] * np.arange(1 - _TREND_STEPS, 1)
    level = np.median(moved[:, -_LEVEL_STEPS:], axis=1)
    ahead = np.arange(1, HORIZON + 1)
    trend = np.cumsum(_DAMPING**ahead)
    future = (first_step + origins[:, None] + ahead).astype(float)
    found: Array = seasonal(table, future) + level[:, None] * _FADING**ahead + slope[:, None] * trend
    return found


def forecast(values: Array, first_step: int) -> Forecast:
    """The forecast after the last of `values`, which has at least FEWEST_STEPS. `first_step` counts from the epoch."""
    known = len(values)
    split = max(int(known * 0.6), _TREND_STEPS)  # the season of the calibration must not know what it is tried on
    origins = np.unique(np.linspace(split, known - 2, min(_PATHS, known - 1 - split)).astype(np.int64))
    earlier = point_forecasts(values, first_step, season(values[:split], first_step), origins)
    targets = origins[:, None] + np.arange(1, HORIZON + 1)
    errors = np.where(targets < known, values[np.minimum(targets, known - 1)] - earlier, np.nan)
    complete = errors[~np.isnan(errors).any(axis=1)]
    if len(complete) < 2:
        complete = np.nan_to_num(errors)
    now = point_forecasts(values, first_step, season(values, first_step), np.array([known - 1]))[0]
    paths = np.maximum(now + complete, 0.0)
    return Forecast(np.quantile(paths, QUANTILES, axis=0), paths)


def regular(steps: npt.NDArray[np.int64], values: Array, last_step: int) -> tuple[Array, int]:
    """A value for each step from the first one on to `last_step`; steps without a row are idle: 0. Beside it the first
    step. A step that comes twice counts with its greater value."""
    first = int(steps.min())
    found = np.zeros(last_step - first + 1)
    np.maximum.at(found, steps - first, values)
    return found, first
