"""Forecasts the greatest utilisation of each of the next 168 hours by drawing earlier days. NumPy only.

Each day ahead is an earlier day, cut at the present minute. Days a whole number of weeks apart are drawn more often
than others when they resembled each other more in the past, and newer days more often than older ones. A steady growth
of the daily level moves what is drawn (Theil-Sen slope, times the square of Kendall's tau, which is near 0 without a
steady direction).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spark_jobs.transforms.forecast_members import DAY

Array = npt.NDArray[np.float64]

DAYS_AHEAD = 7
HOURS = 24
_STEPS = DAY // HOURS  # of an hour
_PATHS = 200
_FORGETTING = 0.95  # weight of a day, per day of its age
_SHARPNESS = 4
_SEED = 20_714  # the same history gives the same outlook


def outlook(values: Array) -> Array | None:
    """Paths x hours: the greatest value of each of the next 7 x 24 hours. `values`: one per five minutes. None with
    less than two days."""
    days = len(values) // DAY
    if days < 2:
        return None
    known = values[len(values) - days * DAY :].reshape(days, HOURS, _STEPS)
    highest, growth = known.max(axis=2), _growth(np.median(known.reshape(days, DAY), axis=1))
    same, other = _errors(highest)
    random = np.random.default_rng(_SEED)
    age = np.arange(days)[::-1]
    found = np.empty((_PATHS, DAYS_AHEAD, HOURS))
    for ahead in range(1, DAYS_AHEAD + 1):
        apart = age + ahead
        weight = np.where(apart % 7 == 0, same, other) ** -_SHARPNESS * _FORGETTING**age
        drawn = random.choice(days, _PATHS, p=weight / weight.sum())
        found[:, ahead - 1] = highest[drawn] + growth * apart[drawn, None]
    return np.maximum(found.reshape(_PATHS, -1), 0.0)


def _growth(levels: Array) -> float:
    """Change of the daily level per day, as far as it is steady."""
    older, newer = np.triu_indices(len(levels), 1)
    slopes = (levels[newer] - levels[older]) / (newer - older)
    tau = float(np.sign(slopes).mean()) if len(levels) >= DAYS_AHEAD else 0.0
    return float(np.median(slopes)) * tau**2


def _errors(highest: Array) -> tuple[float, float]:
    """How far days of the same weekday, and other days, were apart. Equal with less than eight days."""
    apart = {gap: float(np.abs(highest[gap:] - highest[:-gap]).mean()) for gap in range(1, min(8, len(highest)))}
    other = float(np.mean([error for gap, error in apart.items() if gap != 7])) + 1e-3
    return apart.get(7, other) + 1e-3, other
