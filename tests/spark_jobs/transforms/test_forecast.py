"""Forecast and backtest on generated weeks."""

from __future__ import annotations

import numpy as np
import pytest

from spark_jobs.transforms.forecast_model import FEWEST_STEPS, HORIZON, Forecast, forecast, regular, season, seasonal
from tests.kit.forecast_weeks import DAY, MONDAY, Scores, scored, weeks


def test_ramp_reaches_the_limit_near_linear_extrapolation() -> None:
    values = np.concatenate([np.full(600, 0.3), np.linspace(0.3, 0.9, 30)])
    found = forecast(values, MONDAY)
    step = found.likely_step()
    assert step is not None
    assert 5 <= step <= 12  # a straight line needs 5 steps, the damped trend a few more
    assert found.reached_within(HORIZON) > 0.5


def test_rise_without_precedent_goes_on() -> None:
    """No earlier moment resembles it, so nothing that was learnt from them corrects it."""
    rise = np.concatenate([np.full(828, 0.3), np.linspace(0.3, 0.9, 36)])
    noise = np.random.default_rng(6).normal(0, 0.005, len(rise))
    assert forecast(rise + noise, MONDAY).reached_within(HORIZON) > 0.5


def test_low_usage_does_not_reach_the_limit() -> None:
    random = np.random.default_rng(1)
    found = forecast(0.3 + random.normal(0, 0.02, 2000), MONDAY)
    assert [found.likely_step(), found.step_of(0), found.step_of(2)] == [None, None, None]
    assert found.reached_within(HORIZON) == 0.0


def test_expected_step_is_the_median_of_the_paths_that_reach_the_limit() -> None:
    paths = np.zeros((10, HORIZON))
    paths[0, 3:] = paths[1, 5:] = paths[2, 5:] = 1.2
    assert Forecast(paths[:3], paths).likely_step() is None  # three of ten
    paths[3, 20:] = 1.2
    assert Forecast(paths[:3], paths).likely_step() == 6


def test_short_history_is_extrapolated() -> None:
    found = forecast(np.full(FEWEST_STEPS, 0.4), MONDAY)
    assert found.quantiles[1] == pytest.approx(np.full(HORIZON, 0.4))


def test_season_distinguishes_hours_of_the_week() -> None:
    values = weeks(3, days=28, noise=0.01)
    table = season(values, MONDAY)
    noon = np.array([MONDAY + 14 * 12.0, MONDAY + 5 * DAY + 14 * 12.0])
    monday, saturday = seasonal(table, noon)
    assert monday > saturday + 0.2


def test_steps_without_a_row_are_zero() -> None:
    values, first = regular(np.array([10, 12, 12]), np.array([0.5, 0.2, 0.7]), 13)
    assert (values.tolist(), first) == ([0.5, 0.0, 0.7, 0.0], 10)


@pytest.fixture(scope="module")
def scores() -> Scores:
    return scored(range(100, 105))  # the model was not tuned on these


@pytest.mark.spark
def test_probabilities_score_better_than_simple_forecasts(scores: Scores) -> None:
    """Compares proper scores; precision and recall at one threshold are in `python -m tests.bench.forecast`."""
    for name in ("last value", "linear"):
        for figure in ("pinball", "brier_1", "brier_6"):
            assert scores["headroom"][figure] < scores[name][figure], (name, figure, scores)


@pytest.mark.spark
def test_interval_of_80_percent_covers_80_percent(scores: Scores) -> None:
    assert 0.75 <= scores["headroom"]["coverage"] <= 0.85
