"""Forecasts utilisation in steps of five minutes, and when it reaches the limit. NumPy only, no Spark, no clock.

The seasonal part is the median by hour of the week, shrunk towards the median by hour of the day while there are few
weeks. A damped Theil-Sen trend over the last hour models the residual. The errors of the same forecast at earlier
origins, each a complete path, give the uncertainty: quantiles per step, and the share of paths that reach the limit.
Most of these origins are those with a similar trend and distance from the season, because a burst ends otherwise than
a quiet hour; the others are spread over all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

STEP_MS = 300_000
HORIZON = 36  # steps: three hours
LIMIT = 1.0
QUANTILES = (0.1, 0.5, 0.9)
FEWEST_STEPS = 48  # minimum history in steps: four hours

_TREND_STEPS = 12
_LEVEL_STEPS = 4  # number of newest steps that give the current level
_DAMPING = 0.97  # damping of the trend per step
_FADING = 0.99  # damping of the distance from the season per step
_SHRINK = 2.0  # weeks of data at which hour of the week and hour of the day have equal weight
_ORIGINS = 600  # number of earlier origins whose errors are known
_ALIKE, _OTHERS = 100, 100  # of them, number of the most similar ones and of others whose errors are used
_HOUR_MS = 3_600_000
_PAIRS = np.triu_indices(_TREND_STEPS, 1)


@dataclass(frozen=True, slots=True)
class Forecast:
    """Utilisation for the next HORIZON steps. `paths` are equally likely futures, one per row."""

    quantiles: Array  # QUANTILES x HORIZON
    paths: Array

    def reached_within(self, steps: int) -> float:
        """The probability that the limit is reached within `steps` steps."""
        return float((self.paths[:, :steps].max(axis=1) >= LIMIT).mean())

    def step_of(self, quantile: int) -> int | None:
        """The first step (1 is the next) at which this one of QUANTILES reaches the limit; None if not within
        HORIZON."""
        reached = np.flatnonzero(self.quantiles[quantile] >= LIMIT)
        return int(reached[0]) + 1 if len(reached) else None


def season(values: Array, first_step: int) -> Array:
    """The median by hour of the week, 168 values. `first_step` counts from the epoch."""
    hours = ((first_step + np.arange(len(values))) * STEP_MS // _HOUR_MS) % 168
    overall = float(np.median(values))
    daily = np.array([_shrunk(values[hours % 24 == hour], overall) for hour in range(24)])
    return np.array([_shrunk(values[hours == hour], daily[hour % 24]) for hour in range(168)])


def _shrunk(values: Array, towards: float) -> float:
    weight = max(len(values) * STEP_MS / _HOUR_MS - 1, 0.0)  # a single day or week has no seasonality
    return (weight * float(np.median(values)) + _SHRINK * towards) / (weight + _SHRINK) if len(values) else towards


def seasonal(table: Array, steps: Array) -> Array:
    """The season at steps since the epoch, interpolated linearly between the middles of hours."""
    hours = (steps + 0.5) * STEP_MS / _HOUR_MS - 0.5
    before = np.floor(hours).astype(int)
    share = hours - before
    mixed: Array = table[before % 168] * (1 - share) + table[(before + 1) % 168] * share
    return mixed


class Trends(NamedTuple):
    """Distance from the season at each origin, and its change per step."""

    level: Array
    slope: Array


def trends(values: Array, first_step: int, table: Array, origins: npt.NDArray[np.int64]) -> Trends:
    """`origins`: index of the last known value, at least 11."""
    steps = first_step + np.arange(len(values))
    rest = values - seasonal(table, steps.astype(float))
    recent = rest[origins[:, None] + np.arange(1 - _TREND_STEPS, 1)]
    slopes = (recent[:, _PAIRS[1]] - recent[:, _PAIRS[0]]) / (_PAIRS[1] - _PAIRS[0])
    slope = np.median(slopes, axis=1)
    moved = recent - slope[:, None] * np.arange(1 - _TREND_STEPS, 1)
    return Trends(np.median(moved[:, -_LEVEL_STEPS:], axis=1), slope)


def point_forecasts(first_step: int, table: Array, origins: npt.NDArray[np.int64], found: Trends) -> Array:
    """The forecast at each origin: origins x HORIZON."""
    ahead = np.arange(1, HORIZON + 1)
    future = (first_step + origins[:, None] + ahead).astype(float)
    trend = np.cumsum(_DAMPING**ahead)
    points: Array = seasonal(table, future) + found.level[:, None] * _FADING**ahead + found.slope[:, None] * trend
    return points


def forecast(values: Array, first_step: int) -> Forecast:
    """The forecast after the last of `values`, which has at least FEWEST_STEPS. `first_step` counts from the epoch."""
    known = len(values)
    split = max(int(known * 0.6), _TREND_STEPS)  # the season for calibration excludes the data it is tested on
    origins = np.unique(np.linspace(split, known - 2, min(_ORIGINS, known - 1 - split)).astype(np.int64))
    before = season(values[:split], first_step)
    then = trends(values, first_step, before, origins)
    targets = origins[:, None] + np.arange(1, HORIZON + 1)
    earlier = point_forecasts(first_step, before, origins, then)
    errors = np.where(targets < known, values[np.minimum(targets, known - 1)] - earlier, np.nan)
    table, last = season(values, first_step), np.array([known - 1])
    now = trends(values, first_step, table, last)
    paths = np.maximum(point_forecasts(first_step, table, last, now)[0] + _chosen(errors, then, now), 0.0)
    return Forecast(np.quantile(paths, QUANTILES, axis=0), paths)


def _chosen(errors: Array, then: Trends, now: Trends) -> Array:
    """The errors at origins that resemble `now`, and at others spread over all."""
    complete = np.flatnonzero(~np.isnan(errors).any(axis=1))
    if len(complete) < 2:
        known: Array = np.nan_to_num(errors)
        return known
    distance = np.abs(then.level - now.level)[complete] + _TREND_STEPS * np.abs(then.slope - now.slope)[complete]
    alike = complete[np.argsort(distance, kind="stable")[:_ALIKE]]
    others = complete[np.linspace(0, len(complete) - 1, min(_OTHERS, len(complete))).astype(np.int64)]
    chosen: Array = errors[np.concatenate([alike, others])]
    return chosen


def regular(steps: npt.NDArray[np.int64], values: Array, last_step: int) -> tuple[Array, int]:
    """One value per step from the first one to `last_step`, and the first step. Steps without a row are 0 (idle); of
    duplicate steps the greater value counts."""
    first = int(steps.min())
    found = np.zeros(last_step - first + 1)
    np.maximum.at(found, steps - first, values)
    return found, first
