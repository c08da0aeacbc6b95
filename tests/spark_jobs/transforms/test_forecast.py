"""Forecast and backtest on generated weeks whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from spark_jobs.transforms.forecast_model import HORIZON, STEP_MS, Array, forecast, regular, season, seasonal
from spark_jobs.transforms.forecast_scores import LEADS, METHODS, ratio, replay

DAY = 86_400_000 // STEP_MS
MONDAY = 4 * DAY  # 1970-01-05


def weeks(seed: int, days: int = 21, noise: float = 0.02) -> Array:
    """Utilisation with a peak each working day that reaches the limit on some, slow drifts, and bursts of an hour."""
    random = np.random.default_rng(seed)
    steps = np.arange(days * DAY)
    hour = steps % DAY / DAY * 24
    working = (steps // DAY % 7) < 5
    height = np.repeat(random.uniform(0.5, 0.8, days), DAY)
    base = 0.3 + np.where(working, height, 0.15) * np.exp(-(((hour - 14) / 3.5) ** 2))
    wave = np.zeros(len(steps))
    for i in range(1, len(steps)):
        wave[i] = 0.97 * wave[i - 1] + random.normal(0, noise / 3)
    for start in random.choice(len(steps) - 48, days, replace=False):
        wave[start : start + 24] += np.linspace(0, random.uniform(0.2, 0.7), 24)
        wave[start + 24 : start + 36] += np.linspace(0.4, 0, 12)
    return np.maximum(base + wave + random.normal(0, noise, len(steps)), 0)


def test_a_ramp_hits_its_limit_when_the_line_does() -> None:
    values = np.concatenate([np.full(600, 0.3), np.linspace(0.3, 0.9, 30)])
    found = forecast(values, MONDAY)
    step = found.step_of(1)
    assert step is not None
    assert 5 <= step <= 12  # a straight line would need 5, the damped one a little longer
    assert found.reached_within(HORIZON) > 0.5


def test_what_stays_far_below_is_not_in_sight() -> None:
    random = np.random.default_rng(1)
    found = forecast(0.3 + random.normal(0, 0.02, 2000), MONDAY)
    assert [found.step_of(i) for i in range(3)] == [None, None, None]
    assert found.reached_within(HORIZON) == 0.0


def test_the_season_knows_the_hour_of_the_week() -> None:
    values = weeks(3, days=28, noise=0.01)
    table = season(values, MONDAY)
    noon = np.array([MONDAY + 14 * 12.0, MONDAY + 5 * DAY + 14 * 12.0])
    monday, saturday = seasonal(table, noon)
    assert monday > saturday + 0.2


def test_steps_without_a_row_are_idle() -> None:
    values, first = regular(np.array([10, 12, 12]), np.array([0.5, 0.2, 0.7]), 13)
    assert (values.tolist(), first) == ([0.5, 0.0, 0.7, 0.0], 10)


@pytest.fixture(scope="module")
def scores() -> dict[str, dict[str, float]]:
    rows = []
    for seed in range(5):
        values = weeks(seed)
        busy = [at for at in range(14 * DAY, len(values) - HORIZON, 4) if 10 <= at % DAY / 12 <= 17]
        rows += replay(values, MONDAY, busy)
    found: dict[str, dict[str, float]] = {}
    for name in METHODS:
        own = [row for row in rows if row["method"] == name]
        total = {key: float(np.nansum([row[key] for row in own])) for key in own[0] if key != "method"}
        found[name] = {"pinball": total["pinball"] / len(own), "coverage": total["coverage"] / len(own)}
        errors = [row["lead_error"] for row in own if row["lead_error"] == row["lead_error"]]
        found[name]["lead_error"] = float(np.median(errors)) if errors else float("inf")
        for lead in LEADS:
            found[name][f"precision_{lead}"] = ratio(total[f"hit_{lead}"], total[f"flagged_{lead}"])
            found[name][f"recall_{lead}"] = ratio(total[f"hit_{lead}"], total[f"event_{lead}"])
            found[name][f"brier_{lead}"] = total[f"brier_{lead}"] / len(own)
    return found


@pytest.mark.spark
def test_it_is_better_than_simple_forecasts_in_every_figure(scores: dict[str, dict[str, float]]) -> None:
    ours = scores["headroom"]
    for name in ("last value", "linear"):
        for figure, value in scores[name].items():
            if figure.startswith(("precision", "recall")):
                assert ours[figure] >= value, (name, figure, scores)
            elif figure != "coverage":
                assert ours[figure] <= value, (name, figure, scores)


@pytest.mark.spark
def test_the_80_percent_interval_covers_80_percent(scores: dict[str, dict[str, float]]) -> None:
    assert 0.75 <= scores["headroom"]["coverage"] <= 0.85
