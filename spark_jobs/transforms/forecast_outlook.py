"""Forecasts the greatest utilisation of each of the next 168 hours by drawing earlier days. NumPy only.

The first hours are those of the forecast of the next hours, each of its paths one. Each day ahead is an earlier day,
cut at the present minute. Days a whole number of weeks apart are drawn more often than others when they resembled
each other more in the past, and newer days more often than older ones. What is drawn is moved by two things: by a
steady growth of the daily peaks, which compares the same days of different weeks (Theil-Sen slope, times the size of
Kendall's tau, which is near 0 without a steady direction), and by the distance of the present level from the one at
which that day began. How much of such a distance remains after an hour is learnt from the bucket.
"""

import numpy as np

from spark_jobs.transforms.forecast_members import DAY, Array

DAYS_AHEAD = 7
HOURS = 24
_STEPS = DAY // HOURS  # of an hour
_FORGETTING = 0.95  # weight of a day, per day of its age
_SHARPNESS = 8
_FEWEST_WEEKS = 2  # with less history there is no growth
_PAIRS = 3  # of days of the same weekday, from which half of what distinguishes them is believed
_PEAK = 0.9  # quantile of a day that is its peak
_APART = 6  # hours after which the remaining distance is measured
_MOST_LEFT = 0.98  # of a distance, after _APART hours
_SEED = 20_714  # the same history gives the same outlook


def outlook(values: Array, soon: Array) -> Array | None:
    """Paths x hours: the greatest value of each of the next 7 x 24 hours, going on from each path of `soon`, in steps
    of five minutes like `values`. None with less than two days."""
    days = len(values) // DAY
    if days < 2:
        return None
    whole_days = values[len(values) - days * DAY :].reshape(days, HOURS, _STEPS)
    highest, level = whole_days.max(axis=2), whole_days.mean(axis=2)
    growth, same, other = _growth(whole_days.reshape(days, DAY)), *_errors(highest)
    began = np.append(level[0, 0], level[:-1, -1])  # the level in the hour before each day
    random, hours = np.random.default_rng(_SEED), np.arange(1, HOURS + 1)
    age, left = np.arange(days)[::-1], _left(level)
    evenly = (np.arange(len(soon)) + 0.5) / len(soon)  # each day as often as its weight says; in which path is chance
    highest_by_day = np.empty((len(soon), DAYS_AHEAD, HOURS))
    for ahead in range(1, DAYS_AHEAD + 1):
        apart = age + ahead
        weight = np.where(apart % 7 == 0, same, other) ** -_SHARPNESS * _FORGETTING**age
        drawn = random.permutation(np.searchsorted(np.cumsum(weight / weight.sum()), evenly))
        grown = growth * apart[drawn]
        distance = level[-1, -1] - began[drawn] - grown
        highest_by_day[:, ahead - 1] = highest[drawn] + grown[:, None]
        highest_by_day[:, ahead - 1] += distance[:, None] * left ** (hours + HOURS * (ahead - 1))
    hourly = np.maximum(highest_by_day.reshape(len(soon), -1), 0.0)
    near = soon.reshape(len(soon), -1, _STEPS).max(axis=2)
    hourly[:, : near.shape[1]] = near
    return hourly


def _growth(days: Array) -> float:
    """Change of the daily peak per day, as far as it is steady. `days`: days x steps."""
    if len(days) < 7 * _FEWEST_WEEKS:
        return 0.0
    peaks = np.quantile(days, _PEAK, axis=1)
    older, newer = np.triu_indices(len(peaks), 1)
    same_weekday = (newer - older) % 7 == 0
    slopes = (peaks[newer] - peaks[older])[same_weekday] / (newer - older)[same_weekday]
    return float(np.median(slopes) * abs(np.sign(slopes).mean()))


def _left(level: Array) -> float:
    """The share of a distance from the usual level of the hour that remains an hour later. `level`: days x hours."""
    distance = (level - np.median(level, axis=0)).ravel()
    remaining = (distance[_APART:] @ distance[:-_APART]) / (distance @ distance + 1e-12)
    return float(np.clip(remaining, 0.0, _MOST_LEFT) ** (1 / _APART))


def _errors(highest: Array) -> tuple[float, float]:
    """How far days of the same weekday, and other days, were apart. Equal with less than eight days, and nearly so with
    few more: by chance two days are alike."""
    apart = {gap: float(np.abs(highest[gap:] - highest[:-gap]).mean()) for gap in range(1, min(8, len(highest)))}
    other = float(np.mean([error for gap, error in apart.items() if gap != 7])) + 1e-3
    same, pairs = apart.get(7, other) + 1e-3, max(len(highest) - 7, 0)
    return same + (other - same) / (1 + (pairs / _PAIRS) ** 2), other
