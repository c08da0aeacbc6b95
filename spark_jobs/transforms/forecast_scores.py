"""Scores forecasts on history with a rolling origin, against two simple forecasts. NumPy only."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from spark_jobs.transforms.forecast_model import HORIZON, LIMIT, QUANTILES, Array, Forecast, forecast

LEADS = (1, 6)  # steps: 5 and 30 minutes
# Per lead, the probability from which a bucket is flagged: where precision and recall most often both exceed those of a
# straight line, in resampled training seeds of tests/bench/forecast.py.
FLAGGED_FROM = {1: 0.33, 6: 0.37}
_SCORED = 12  # steps over which pinball loss and coverage are computed: an hour
_TREND_STEPS = 12

Method = Callable[[Array, int], Forecast]


def last_value(values: Array, _first_step: int) -> Forecast:
    """Persistence: the last value continues."""
    path = np.full((1, HORIZON), values[-1])
    return Forecast(np.repeat(path, len(QUANTILES), axis=0), path)


def linear(values: Array, _first_step: int) -> Forecast:
    """Linear extrapolation of the last hour."""
    recent = values[-_TREND_STEPS:]
    slope, level = np.polyfit(np.arange(1 - len(recent), 1), recent, 1)
    path = np.maximum(level + slope * np.arange(1, HORIZON + 1), 0.0)[None, :]
    return Forecast(np.repeat(path, len(QUANTILES), axis=0), path)


METHODS: Mapping[str, Method] = {"headroom": forecast, "last value": last_value, "linear": linear}


def replay(values: Array, first_step: int, origins: list[int]) -> list[dict[str, float | str]]:
    """One row per method and origin (number of known values) at which the limit is not reached yet: forecast, outcome
    and losses. The figures can be summed over buckets: see `summary`."""
    rows: list[dict[str, float | str]] = []
    for origin in origins:
        actual = values[origin : origin + HORIZON]
        if len(actual) < HORIZON or values[origin - 1] >= LIMIT:
            continue
        for name, method in METHODS.items():
            rows.append({"method": name, **_scored(method(values[:origin], first_step), actual)})
    return rows


def _scored(found: Forecast, actual: Array) -> dict[str, float]:
    row: dict[str, float] = {}
    for lead in LEADS:
        probability = found.reached_within(lead)
        event = float(actual[:lead].max() >= LIMIT)
        flagged = float(probability >= FLAGGED_FROM[lead])
        row |= {f"hit_{lead}": flagged * event, f"flagged_{lead}": flagged, f"event_{lead}": event}
        row[f"brier_{lead}"] = (probability - event) ** 2
    crossing = np.flatnonzero(actual >= LIMIT)
    step = found.likely_step()
    both = len(crossing) > 0 and step is not None
    row["lead_error"] = abs(float(crossing[0]) + 1 - step) if both and step is not None else float("nan")
    row["missed"] = float(len(crossing) > 0 and step is None)
    ahead = actual[:_SCORED]
    losses = [_pinball(ahead - found.quantiles[i, :_SCORED], q) for i, q in enumerate(QUANTILES)]
    row["pinball"] = float(np.mean(losses))
    inside = (ahead >= found.quantiles[0, :_SCORED]) & (ahead <= found.quantiles[-1, :_SCORED])
    row["coverage"] = float(inside.mean())
    return row


def _pinball(error: Array, quantile: float) -> float:
    return float(np.mean(np.maximum(quantile * error, (quantile - 1) * error)))


def ratio(part: float, whole: float) -> float:
    """Quotient, 0 if the divisor is 0."""
    return part / whole if whole else 0.0
