"""Scores forecasts on history with a rolling origin, against simple forecasts and a library's. NumPy only.

The library is statsforecast (MSTL: seasons of a day and a week), used where it is installed."""

import importlib.util
from collections.abc import Callable, Mapping
from statistics import NormalDist

import numpy as np

from spark_jobs.transforms.forecast_members import DAY, Array
from spark_jobs.transforms.forecast_model import HORIZON, LIMIT, QUANTILES, Forecast, forecast

WEEK = 7 * DAY
LEADS = {1: "5m", 6: "30m", 12: "1h", HORIZON: "3h", DAY: "24h", WEEK: "7d"}  # steps and their names
# Per lead, the probability from which a bucket is flagged: where precision and recall are furthest above the best of
# the other methods on shapes other than those of `python -m tests.bench.forecast`.
FLAGGED_FROM = {1: 0.25, 6: 0.36, 12: 0.44, HORIZON: 0.42, DAY: 0.52, WEEK: 0.92}
_SCORED = 12  # steps over which pinball loss and coverage are computed: an hour
_TREND_STEPS = 12
# Steps between which MSTL interpolates its trend instead of fitting each, as R's stl() does: the same forecast to three
# digits for a fraction of the CPU, so it is the harder yardstick.
_SMOOTH_STEPS = 29
_Z90 = 1.2815515655446004
_NORMAL = np.array([NormalDist().inv_cdf((i + 0.5) / 100) for i in range(100)])

Method = Callable[[Array, int], Forecast]


def last_value(values: Array, _first_step: int) -> Forecast:
    """Persistence: the last value continues."""
    return _certain(np.full(WEEK, values[-1]))


def _certain(path: Array) -> Forecast:
    """A forecast of one path over WEEK steps."""
    near = path[None, :HORIZON]
    return Forecast(np.repeat(near, len(QUANTILES), axis=0), near, path.reshape(1, -1, DAY // 24).max(axis=2))


def linear(values: Array, _first_step: int) -> Forecast:
    recent = values[-_TREND_STEPS:]
    slope, level = np.polyfit(np.arange(1 - len(recent), 1), recent, 1)
    return _certain(np.maximum(level + slope * np.arange(1, WEEK + 1), 0.0))


def as_yesterday(values: Array, _first_step: int) -> Forecast:
    """Seasonal naive: the same minutes of the day before, and again each day; the last value while there is no day
    before."""
    return _certain(np.resize(values[-DAY:], WEEK)) if len(values) >= DAY else last_value(values, _first_step)


def mstl(values: Array, first_step: int) -> Forecast:
    """statsforecast's MSTL with seasons of a day and, from two weeks on, a week. Its paths are its own normal
    quantiles, each as a whole path. Raises ImportError where it is not installed."""
    from statsforecast.models import MSTL  # type: ignore[import-not-found, unused-ignore]

    seasons = [season for season in (DAY, 7 * DAY) if len(values) >= 2 * season]
    if not seasons:
        return linear(values, first_step)
    smooth = {"trend_jump": _SMOOTH_STEPS, "low_pass_jump": _SMOOTH_STEPS}
    made = MSTL(season_length=seasons, stl_kwargs=smooth).forecast(values, WEEK, level=[80])
    spread = np.maximum((made["hi-80"] - made["mean"]) / _Z90, 1e-9)
    paths = np.maximum(made["mean"] + _NORMAL[:, None] * spread, 0.0)
    near, hours = paths[:, :HORIZON], paths.reshape(len(paths), -1, DAY // 24).max(axis=2)
    return Forecast(np.quantile(near, QUANTILES, axis=0), near, hours)


METHODS: Mapping[str, Method] = {
    "headroom": forecast,
    "last value": last_value,
    "linear": linear,
    "yesterday": as_yesterday,
    **({"mstl": mstl} if importlib.util.find_spec("statsforecast") else {}),
}


def replay(values: Array, first_step: int, origins: list[int]) -> list[dict[str, float | str]]:
    """One row per method and origin (number of known values) at which the limit is not reached yet: forecast, outcome
    and losses. The figures can be summed over buckets; `known_LEAD` says whether the outcome at that lead is known."""
    rows: list[dict[str, float | str]] = []
    for origin in origins:
        actual = values[origin : origin + WEEK]
        if len(actual) < HORIZON or values[origin - 1] >= LIMIT:
            continue
        for name, method in METHODS.items():
            rows.append({"method": name, **score(method(values[:origin], first_step), actual)})
    return rows


def score(made: Forecast, actual: Array) -> dict[str, float]:
    """Losses of a forecast for what happened: at least HORIZON steps; leads beyond its end are not known."""
    row: dict[str, float] = {}
    for lead in LEADS:
        probability = made.reached_within(lead)
        is_known = float(len(actual) >= lead)
        event = is_known * float(actual[:lead].max() >= LIMIT)
        flagged = is_known * float(probability >= FLAGGED_FROM[lead])
        row |= {f"hit_{lead}": flagged * event, f"flagged_{lead}": flagged, f"event_{lead}": event}
        row |= {f"brier_{lead}": is_known * (probability - event) ** 2, f"known_{lead}": is_known}
    crossing = np.flatnonzero(actual[:HORIZON] >= LIMIT)
    step = made.likely_step()
    row["lead_error"] = float("nan") if step is None or not len(crossing) else abs(float(crossing[0]) + 1 - step)
    ahead = actual[:_SCORED]
    quantiles = np.array(QUANTILES)[:, None]
    errors = ahead - made.quantiles[:, :_SCORED]
    row["pinball"] = float(np.maximum(quantiles * errors, (quantiles - 1) * errors).mean())
    inside = (ahead >= made.quantiles[0, :_SCORED]) & (ahead <= made.quantiles[-1, :_SCORED])
    row["coverage"] = float(inside.mean())
    return row


def ratio(part: float, whole: float) -> float:
    """Quotient, 0 if the divisor is 0."""
    return part / whole if whole else 0.0
