"""Forecast and backtest on generated weeks."""

import numpy as np
import pandas as pd
import pytest

from spark_jobs.jobs.throttle_forecast import explain_forecast
from spark_jobs.transforms.demand import recorded
from spark_jobs.transforms.forecast_members import crps
from spark_jobs.transforms.forecast_model import FEWEST_STEPS, HORIZON, Forecast, forecast
from tests.kit.forecasts import DAY, MONDAY, Scores, scored, sunday_batch, weeks


def test_ramp_reaches_the_limit_near_linear_extrapolation() -> None:
    values = np.concatenate([np.full(600, 0.3), np.linspace(0.3, 0.9, 30)])
    made = forecast(values, MONDAY)
    step = made.likely_step()
    assert step is not None
    assert 5 <= step <= 12  # a straight line needs 5 steps, the damped trend a few more
    assert made.reached_within(HORIZON) > 0.5


@pytest.mark.parametrize("quiet", [828, 10 * DAY])
def test_rise_without_precedent_goes_on(quiet: int) -> None:
    """No earlier moment resembles it, so nothing that was learnt from them corrects it, and no calm day denies it."""
    rise = np.concatenate([np.full(quiet, 0.3), np.linspace(0.3, 0.9, 36)])
    noise = np.random.default_rng(6).normal(0, 0.005, len(rise))
    assert forecast(rise + noise, MONDAY).reached_within(HORIZON) > 0.5


def test_low_usage_does_not_reach_the_limit() -> None:
    random = np.random.default_rng(1)
    made = forecast(0.3 + random.normal(0, 0.02, 2000), MONDAY)
    assert [made.likely_step(), made.step_of(0), made.step_of(2)] == [None, None, None]
    assert made.reached_within(HORIZON) == 0.0


def test_expected_step_is_the_median_of_the_paths_that_reach_the_limit() -> None:
    paths = np.zeros((10, HORIZON))
    paths[0, 3:] = paths[1, 5:] = paths[2, 5:] = 1.2
    assert Forecast(paths[:3], paths).likely_step() is None  # three of ten
    paths[3, 20:] = 1.2
    assert Forecast(paths[:3], paths).likely_step() == 6


def test_short_history_is_extrapolated() -> None:
    made = forecast(np.full(FEWEST_STEPS, 0.4), MONDAY)
    assert made.quantiles[1] == pytest.approx(np.full(HORIZON, 0.4))


def test_what_happens_weekly_is_seen_days_ahead() -> None:
    values = sunday_batch(np.random.default_rng(5000), 35)
    made = forecast(values[: 23 * DAY], MONDAY)  # Wednesday, 00:00: the batch is on Sunday at 03:00
    assert made.hours is not None
    assert made.reached_within(DAY) < 0.2
    assert made.reached_within(7 * DAY) > 0.5
    reached = (made.hours >= 1.0).mean(axis=0)
    assert int(reached.argmax()) in (4 * 24 + 3, 4 * 24 + 4)


def test_two_days_that_are_alike_by_chance_are_no_week() -> None:
    """Of eight days some have an hour above the limit."""
    claims = 0
    for seed in range(30):
        random = np.random.default_rng(seed)
        values = 0.3 + random.normal(0, 0.02, 8 * DAY)
        for day in np.flatnonzero(random.random(8) < 0.12):
            start = day * DAY + random.integers(0, DAY - 12)
            values[start : start + 12] = 1.2
        claims += forecast(values, MONDAY).reached_within(7 * DAY) > 0.9
    assert claims <= 3


def test_growth_reaches_the_limit_within_days() -> None:
    day = np.arange(20 * DAY) / DAY
    values = 0.3 + 0.03 * day + 0.02 * np.sin(day * 2 * np.pi)  # 0.9 now; the limit in about three days
    made = forecast(values, MONDAY)
    assert made.reached_within(DAY) < 0.5 < made.reached_within(7 * DAY)


def test_decline_stays_below_the_limit() -> None:
    """Its peaks on working days were above the limit three weeks ago, and are at three quarters of it now."""
    day = np.arange(24 * DAY) / DAY
    wave = (0.85 - 0.4 * day / 35) * (1 + 0.3 * np.sin(day * 2 * np.pi)) * np.where(day % 7 < 5, 1.0, 0.6)
    made = forecast(wave + np.random.default_rng(3).normal(0, 0.02, len(day)), MONDAY)
    assert made.reached_within(7 * DAY) < 0.1


def test_level_that_persists_persists_into_the_next_day() -> None:
    """The level of each half day is drawn anew, so a high one lasts for hours, and no hour of the day tells it."""
    random = np.random.default_rng(8)
    levels = np.repeat(random.choice([0.4, 0.8], 60, p=[0.8, 0.2]), DAY // 2) + random.normal(0, 0.02, 30 * DAY)
    low, high = (
        forecast(np.concatenate([levels, np.full(36, now) + random.normal(0, 0.02, 36)]), MONDAY) for now in (0.4, 0.8)
    )
    assert low.hours is not None
    assert high.hours is not None
    assert high.hours[:, 3:8].mean() > low.hours[:, 3:8].mean() + 0.15


def test_job_that_moved_is_seen_at_its_new_hour() -> None:
    """From 04:00 to 15:00, four days ago."""
    hour, day = np.arange(23 * DAY) % DAY // 12, np.arange(23 * DAY) // DAY
    values = np.where(hour == np.where(day < 18, 4, 15), 1.2, 0.3) + np.random.default_rng(2).normal(0, 0.02, 23 * DAY)
    assert forecast(values[: 22 * DAY + 14 * 12], MONDAY).reached_within(HORIZON) > 0.8  # at 14:00
    assert forecast(values[: 22 * DAY + 3 * 12], MONDAY).reached_within(HORIZON) < 0.2  # at 03:00


def test_probability_never_falls_with_the_time_ahead() -> None:
    for seed in range(4):
        values = weeks(seed, days=16)
        made = forecast(values[: 15 * DAY + 120], MONDAY)
        chances = [made.reached_within(steps) for steps in (1, 12, HORIZON, DAY, 7 * DAY)]
        assert chances == sorted(chances)


def test_nothing_beyond_three_hours_without_two_days() -> None:
    made = forecast(np.full(DAY, 0.4), MONDAY)
    assert (made.hours, made.next_step()) == (None, None)


def test_crps_of_an_ensemble() -> None:
    """By the definition: mean distance from the outcome, less half of the mean distance of two draws."""
    paths, actual = np.array([[1.0], [2.0], [4.0]]), np.array([3.0])
    pairs = [abs(a - b) for a in (1, 2, 4) for b in (1, 2, 4)]
    assert crps(paths, actual) == pytest.approx((2 + 1 + 1) / 3 - np.mean(pairs) / 2)


def test_steps_without_a_row_are_zero_and_shares_are_of_the_newest_limit() -> None:
    rows = {"step": [10, 12, 12], "limit": [50.0, 100.0, 100.0], "wanted": [1.0, 0.2, 0.7], "p95": [0.8, 0.1, 0.3]}
    shares = recorded(pd.DataFrame(rows), 13)
    assert (shares.wanted.tolist(), shares.used.tolist()) == ([0.5, 0.0, 0.7, 0.0], [0.4, 0.0, 0.3, 0.0])
    assert (shares.first_step, shares.limit) == (10, 100.0)


@pytest.mark.parametrize(
    ("used", "wanted", "said"), [(0.999, 0.999, "at 99% of the limit: not"), (0.9, 1.2, "wanting about 120%): it is")]
)
def test_reason_says_100_percent_from_the_limit_on(used: float, wanted: float, said: str) -> None:
    row = {"utilization": used, "confidence": 0.1, "hits_limit_at": None, "within_7d": None}
    assert said in explain_forecast(row, wanted)


@pytest.fixture(scope="module")
def scores() -> Scores:
    return scored(range(100, 105))  # the model was not tuned on these


@pytest.mark.release
@pytest.mark.spark
def test_probabilities_score_better_than_simple_forecasts(scores: Scores) -> None:
    """Compares proper scores; precision and recall at one threshold are in `python -m tests.bench.forecast`."""
    for name in ("last value", "linear"):
        for figure in ("pinball", "brier_1", "brier_6"):
            assert scores["headroom"][figure] < scores[name][figure], (name, figure, scores)


@pytest.mark.release
@pytest.mark.spark
def test_interval_of_80_percent_covers_80_percent(scores: Scores) -> None:
    assert 0.75 <= scores["headroom"]["coverage"] <= 0.85
