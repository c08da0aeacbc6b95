"""Forecasts utilisation in steps of five minutes, and when it reaches the limit. NumPy only, no Spark, no clock.

The seasonal part is the median by hour of the week, shrunk towards the median by hour of the day while there are few
weeks. A damped Theil-Sen trend over the last hour models the residual. What this extrapolation got wrong at earlier
origins of the same bucket corrects it (`corrected`). A straight line through the last hour has some weight in
the first steps, because the errors of the two partly cancel (Bates and Granger, The Combination of Forecasts, 1969).
The errors that remain at earlier origins, each a complete path, give the uncertainty: quantiles per step, and the share
of paths that reach the limit. Most of these origins are those with a similar trend and distance from the season,
because a burst ends otherwise than a quiet hour; the others are spread over all. Each half of the history is
extrapolated with the season of the other half: a season that had seen its origins would make their errors too small.
Other paths repeat earlier days, and the past errors of both decide how many there are of each (`forecast_members`).
Hours beyond are drawn from earlier days (`forecast_outlook`).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from spark_jobs.time_range import STEP_MS
from spark_jobs.transforms import forecast_members as members
from spark_jobs.transforms.forecast_members import DAY, Array, Indices
from spark_jobs.transforms.forecast_outlook import outlook

HORIZON = 36  # steps: three hours
LIMIT = 1.0
LIKELY = 0.4  # share of paths from which the limit is expected to be reached
QUANTILES = (0.1, 0.5, 0.9)
FEWEST_STEPS = 48  # minimum history in steps: four hours

_TREND_STEPS = 12
_LEVEL_STEPS = 4  # number of newest steps that give the current level
_DAMPING = 0.97  # damping of the trend per step
_LAGS = 3  # number of newest steps whose distance from a line through the last hour is a feature
_LINE_SHARE = 0.3 * 0.9 ** np.arange(HORIZON)  # weight of a line through the last hour in the forecast, per step
_FADING = 0.99  # damping of the distance from the season per step
_SHRINK = 2.0  # weeks of data at which hour of the week and hour of the day have equal weight
_ORIGINS = 800  # about the number of earlier origins whose errors are known
_ALIKE, _OTHERS = 100, 100  # of them, number of the most similar ones and of others whose errors are used
_FEWEST_CORRECTED = 100  # with fewer origins the correction would follow single ones
_RIDGE = 0.02  # share of each feature's weighted square that is added to the normal equations
_SMALLEST = 1e-9
_MOST_LEVERAGE = 0.7
_REACH = 0.25  # distance at which the weight of an origin falls to 1/e
_LEAST_WEIGHT = 0.01
_HOUR_MS = 3_600_000
_NEAR = 18  # steps around the same time of day at which past errors of members count
_PATHS = 200  # about so many equally likely futures
_PAIRS = np.triu_indices(_TREND_STEPS, 1)


@dataclass(frozen=True, slots=True)
class Forecast:
    """Utilisation for the next HORIZON steps, and the greatest one of each hour of a week."""

    quantiles: Array  # QUANTILES x HORIZON
    paths: Array  # equally likely futures, one per row
    hours: Array | None = None  # the same for the maximum of each hour; None with less than two days of history

    def reached_within(self, steps: int) -> float:
        """The probability that the limit is reached within `steps` steps. Beyond HORIZON that of HORIZON without
        `hours`."""
        if steps <= HORIZON or self.hours is None:
            highest = self.paths[:, :steps].max(axis=1)
        else:
            highest = self.hours[:, : steps * STEP_MS // _HOUR_MS].max(axis=1)
        return float((highest >= LIMIT).mean())

    def next_step(self) -> int | None:
        """The first step of the hour by which half of the hourly paths that reach the limit have reached it; None if
        fewer than LIKELY of them do, or without `hours`. Never later than `likely_step`."""
        soon, hour = self.likely_step(), None if self.hours is None else _half_reached(self.hours)
        if soon is not None or hour is None:
            return soon
        return (hour - 1) * (_HOUR_MS // STEP_MS) + 1

    def likely_step(self) -> int | None:
        """The first step by which half of the paths that reach the limit have reached it; None if fewer than LIKELY of
        all paths do so within HORIZON."""
        return _half_reached(self.paths)

    def step_of(self, quantile: int) -> int | None:
        """The first step (1 is the next) by which a share of 1 - QUANTILES[quantile] of the paths has reached the
        limit; None if not within HORIZON."""
        so_far = np.maximum.accumulate(self.paths, axis=1) >= LIMIT
        reached = np.flatnonzero(so_far.mean(axis=0) >= 1 - QUANTILES[quantile])
        return int(reached[0]) + 1 if len(reached) else None


def _half_reached(paths: Array) -> int | None:
    reached = paths >= LIMIT
    which = reached.any(axis=1)
    if which.mean() < LIKELY:
        return None
    return int(np.median(reached[which].argmax(axis=1))) + 1


def season(values: Array, first_step: int) -> Array:
    """The median by hour of the week, 168 values. `first_step` counts from the epoch."""
    daily = _shrunk(*_medians(values, first_step, 24), np.full(24, np.median(values)))
    return _shrunk(*_medians(values, first_step, 168), np.tile(daily, 7))


def _medians(values: Array, first_step: int, hours: int) -> tuple[Array, Array]:
    """The median of each hour of a cycle of `hours`, NaN without a value, and how many values it has."""
    per_hour = _HOUR_MS // STEP_MS
    cycle = hours * per_hour
    before = first_step % cycle
    padded = np.full(-(-(before + len(values)) // cycle) * cycle, np.nan)
    padded[before : before + len(values)] = values
    of_hour = np.sort(padded.reshape(-1, hours, per_hour).swapaxes(0, 1).reshape(hours, -1), axis=1)  # NaN come last
    count = (~np.isnan(of_hour)).sum(axis=1)
    row = np.arange(hours)
    middle = of_hour[row, np.maximum(count - 1, 0) // 2] + of_hour[row, np.minimum(count // 2, of_hour.shape[1] - 1)]
    return np.where(count > 0, middle / 2, np.nan), count.astype(float)


def _shrunk(medians: Array, count: Array, towards: Array) -> Array:
    weight = np.maximum(count * STEP_MS / _HOUR_MS - 1, 0.0)  # a single day or week has no seasonality
    mixed: Array = np.where(
        count > 0, (weight * np.nan_to_num(medians) + _SHRINK * towards) / (weight + _SHRINK), towards
    )
    return mixed


def seasonal(table: Array, steps: Array) -> Array:
    """The season at steps since the epoch, interpolated linearly between the middles of hours."""
    hours = (steps + 0.5) * STEP_MS / _HOUR_MS - 0.5
    before = np.floor(hours).astype(int)
    share = hours - before
    mixed: Array = table[before % 168] * (1 - share) + table[(before + 1) % 168] * share
    return mixed


class Moments(NamedTuple):
    """The last hour at each origin, and what is extrapolated from it."""

    level: Array  # distance from the season
    slope: Array  # its change per step
    points: Array  # the extrapolation: origins x HORIZON
    line: Array  # a straight line through the last hour, as far: origins x HORIZON
    features: Array  # from which the error of `points` is predicted: origins x HORIZON x features


def moments(values: Array, first_step: int, table: Array, origins: Indices) -> Moments:
    """`origins`: index of the last known value, at least 11. `table` is the season."""
    at_step = seasonal(table, (first_step + np.arange(len(values))).astype(float))
    # Level and Theil-Sen slope.
    distance = _last_hour(values - at_step, origins)
    slope = np.median((distance[:, _PAIRS[1]] - distance[:, _PAIRS[0]]) / (_PAIRS[1] - _PAIRS[0]), axis=1)
    level = np.median((distance - slope[:, None] * np.arange(1 - _TREND_STEPS, 1))[:, -_LEVEL_STEPS:], axis=1)
    ahead = np.arange(1, HORIZON + 1)
    future = seasonal(table, (first_step + origins[:, None] + ahead).astype(float))
    points = future + level[:, None] * _FADING**ahead + slope[:, None] * np.cumsum(_DAMPING**ahead)
    swing = future - at_step[origins][:, None]  # what the season is going to do
    recent = _last_hour(values, origins)
    value, rise = _line(recent)
    line = value[:, None] + rise[:, None] * ahead
    # How much steeper the second half of the hour is, and the distances of the newest steps from the line.
    steeper = _line(recent[:, -_TREND_STEPS // 2 :])[1] - rise
    lags = [recent[:, -1 - lag] - (value - rise * lag) for lag in range(_LAGS)]
    flat = [np.ones(len(origins)), level, slope * _TREND_STEPS]
    flat += [value, rise * _TREND_STEPS, steeper * _TREND_STEPS, *lags]
    columns = [*(np.repeat(column[:, None], HORIZON, axis=1) for column in flat), swing, level[:, None] * swing]
    return Moments(level, slope, points, line, np.stack(columns, axis=2))


def _last_hour(values: Array, origins: Indices) -> Array:
    hour: Array = values[origins[:, None] + np.arange(1 - _TREND_STEPS, 1)]
    return hour


def _line(recent: Array) -> tuple[Array, Array]:
    """Least squares line through each row: its last value and its slope."""
    at = np.arange(recent.shape[1]) - (recent.shape[1] - 1) / 2
    slope = recent @ at / (at @ at)
    return recent.mean(axis=1) + slope * at[-1], slope


def forecast(values: Array, first_step: int) -> Forecast:
    """The forecast after the last of `values`, which has at least FEWEST_STEPS. `first_step` counts from the epoch."""
    count = len(values)
    origins, then = _earlier(values, first_step)
    targets = origins[:, None] + np.arange(1, HORIZON + 1)
    errors = np.where(targets < count, values[np.minimum(targets, count - 1)] - then.points, np.nan)
    now = moments(values, first_step, season(values, first_step), np.array([count - 1]))
    added, left, alike = _likely_errors(errors, then, now)
    extrapolated = np.maximum(now.points[0] + added + left[alike], 0.0)
    complete = ~np.isnan(errors).any(axis=1)
    paths = _combined(values, origins[complete], left, left[alike], extrapolated)
    return Forecast(np.quantile(paths, QUANTILES, axis=0), paths, outlook(values, paths))


def _combined(values: Array, origins: Indices, left: Array, used: Array, extrapolated: Array) -> Array:
    """The extrapolated paths together with those that repeat earlier days, by their past errors.

    `left`: what is left of the extrapolation's errors at `origins`; `used`: those that its paths have."""
    last, days = len(values) - 1, len(values) // (2 * DAY)
    apart = (origins - last) % DAY
    near_in_time = np.minimum(apart, DAY - apart) <= _NEAR
    judged = near_in_time & (origins >= days * DAY + _TREND_STEPS)
    if days < 2 or judged.sum() < days or len(left) != len(origins):
        return extrapolated
    origins = origins[judged]
    actual = values[origins[:, None] + np.arange(1, HORIZON + 1)]
    past, _ = members.repeated(values, origins, HORIZON, days)
    present, gaps = members.repeated(values, np.array([last]), HORIZON, (len(values) - _TREND_STEPS) // DAY)
    losses = {name: members.crps(paths, actual) + float(gaps[name][0]) for name, paths in past.items()}
    losses["extrapolated"] = members.crps(used[None], left[judged])
    now = {name: present[name][0] for name in past}
    return members.combined({**now, "extrapolated": extrapolated}, losses, _PATHS)


def _earlier(values: Array, first_step: int) -> tuple[Indices, Moments]:
    """Earlier origins, and the moments there, each extrapolated with the season of the other half of the history."""
    half, last = len(values) // 2, len(values) - 1
    # At most about _ORIGINS, evenly spread so that each day has one at the same minute.
    apart = next(step for step in range(1, DAY + 1) if (DAY % step == 0 and step * _ORIGINS >= last) or step == DAY)
    origins = np.arange(last, _TREND_STEPS - 2, -apart)[:0:-1]
    older, newer = origins[origins < half], origins[origins >= half]
    halves = (
        moments(values, first_step, season(values[half:], first_step + half), older),
        moments(values, first_step, season(values[:half], first_step), newer),
    )
    return origins, Moments(*(np.concatenate(parts) for parts in zip(*halves, strict=True)))


def _likely_errors(errors: Array, then: Moments, now: Moments) -> tuple[Array, Array, Indices]:
    """What to add to the present extrapolation, the errors that remain at the origins whose future is known, and which
    of these to use: those that resemble the present, and others spread over all."""
    complete = np.flatnonzero(~np.isnan(errors).any(axis=1))
    if len(complete) < 2:
        return np.zeros(HORIZON), np.nan_to_num(errors), np.arange(len(errors))
    distance = (np.abs(then.level - now.level) + _TREND_STEPS * np.abs(then.slope - now.slope))[complete]
    added, left = np.zeros(HORIZON), errors[complete]
    if len(complete) >= _FEWEST_CORRECTED:
        resemblance = np.exp(-((distance / _REACH) ** 2))
        added, remain = corrected(left, then.features[complete], resemblance + _LEAST_WEIGHT, now.features[0])
        trust = resemblance.sum() / (resemblance.sum() + 1)  # none if no moment resembles the present one
        added, left = trust * added, trust * remain + (1 - trust) * left
    of_line = errors[complete] + then.points[complete] - then.line[complete]
    added += _LINE_SHARE * (now.line[0] - now.points[0] - added)
    left = left + _LINE_SHARE * (of_line - left)
    alike = np.argsort(distance, kind="stable")[:_ALIKE]
    others = np.linspace(0, len(complete) - 1, min(_OTHERS, len(complete))).astype(np.int64)
    return added, left, np.concatenate([alike, others])


def corrected(errors: Array, features: Array, weights: Array, present: Array) -> tuple[Array, Array]:
    """What to add to the present forecast (steps), and the errors that remain (moments x steps).

    A weighted ridge regression per step ahead: it learns what an extrapolation gets wrong in this bucket, for
    example how far a burst continues. Moments that resemble the present one have most of the weight (local regression:
    Cleveland, 1979). The errors that remain at earlier moments are corrected for having been fitted themselves
    (leave-one-out residuals), else they would be too small for an interval.

    `errors`: moments x steps; `features`: moments x steps x features; `weights`: one per moment; `present`: features
    of the present moment, steps x features. Features beyond those of the earlier moments count as the greatest or
    smallest of these."""
    by_step = features.transpose(1, 0, 2)
    weighted = by_step * weights[None, :, None]
    normal = weighted.transpose(0, 2, 1) @ by_step
    diagonal = np.arange(features.shape[2])
    normal[:, diagonal, diagonal] *= 1 + _RIDGE
    normal[:, diagonal, diagonal] += _SMALLEST
    inverse = np.linalg.inv(normal)
    fitted = np.einsum("sfg,smg,ms->sf", inverse, weighted, errors, optimize=True)
    leverage = ((weighted @ inverse) * by_step).sum(axis=2).T
    left = (errors - np.einsum("smf,sf->ms", by_step, fitted)) / (1 - np.minimum(leverage, _MOST_LEVERAGE))
    within = np.clip(present, features.min(axis=0), features.max(axis=0))
    return (within * fitted).sum(axis=1), left
