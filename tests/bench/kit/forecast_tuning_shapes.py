"""Shapes of usage on which the constants of the forecast are chosen, and none of which scores it (`forecast_shapes`).
Each makes the utilisation of five minutes, from a Monday on."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from spark_jobs.transforms.forecast_model import Array
from tests.kit.forecast.shapes import HOUR, Shape, clock
from tests.kit.forecast.weeks import DAY, weeks


def _wandering(
    random: np.random.Generator, base: Array, wander: float, noise: float = 0.015, kept: float = 0.98
) -> Array:
    """`base` with a level that wanders and keeps a share of its distance per step, and noise."""
    level, levels = 0.0, np.zeros(len(base))
    for i, pushed in enumerate(random.normal(0, wander / 3, len(base))):
        level = levels[i] = kept * level + pushed
    return np.maximum(base + levels + random.normal(0, noise, len(base)), 0)


def _sine(hour: Array, from_hour: float) -> Array:
    wave: Array = np.sin((hour - from_hour) / 24 * 2 * np.pi)
    return wave


def _hump(hour: Array, at: float, width: float) -> Array:
    return np.exp(-(((hour - at) / width) ** 2))


def working_weeks(random: np.random.Generator, days: int) -> Array:
    """Daily peaks on working days, with bursts."""
    return weeks(int(random.integers(1, 10**6)), days)


def jittered_job(random: np.random.Generator, days: int) -> Array:
    """A job of 30 to 60 minutes each day, whose start varies by 20 minutes; sometimes below the limit."""
    base, at = np.full(days * DAY, 0.2), int(random.integers(0, 20) * HOUR)
    for day in range(days):
        start = day * DAY + at + int(random.integers(0, 5))
        base[start : start + int(random.integers(6, 12))] += random.uniform(0.7, 1.0)
    return _wandering(random, base, 0.02)


def six_hourly(random: np.random.Generator, days: int) -> Array:
    """A quarter of an hour above the limit every six hours."""
    steps = np.arange(days * DAY) + int(random.integers(0, 6 * HOUR))
    return _wandering(random, np.where(steps % (6 * HOUR) < 3, 1.1, 0.3), 0.02)


def weekday_evening(random: np.random.Generator, days: int) -> Array:
    """A job on working days at 22:30; a daily wave besides."""
    hour, day = clock(days)
    running = (hour >= 22.5) & (hour < 23.17) & (day % 7 < 5)
    return _wandering(random, 0.35 + 0.12 * _sine(hour, 7) + 0.62 * running, 0.05)


def weekend_load(random: np.random.Generator, days: int) -> Array:
    """High at weekends."""
    hour, day = clock(days)
    height = np.array([0.35, 0.33, 0.35, 0.4, 0.55, 0.8, 0.85])[day.astype(int) % 7]
    return _wandering(random, 0.15 + height * _hump(hour, 16, 4), 0.06)


def growing_weeks(random: np.random.Generator, days: int) -> Array:
    """Exponential growth of daily peaks that are lower at weekends."""
    hour, day = clock(days)
    level = np.exp(np.arange(len(day)) / len(day) * random.uniform(0.5, 0.9)) * 0.42
    return _wandering(random, level * (1 + (0.45 - 0.3 * (day % 7 >= 5)) * _hump(hour, 12, 4)), 0.04)


def shrinking(random: np.random.Generator, days: int) -> Array:
    """A daily wave that reached the limit once, and shrinks."""
    hour, _ = clock(days)
    level = 0.85 - 0.4 * np.arange(len(hour)) / len(hour)
    return _wandering(random, level * (1 + 0.3 * _sine(hour, 9)), 0.04)


def fast_noise(random: np.random.Generator, days: int) -> Array:
    """No season; soon back at its mean."""
    return _wandering(random, np.full(days * DAY, 0.7), 0.2, 0.04, 0.93)


def slow_walk(random: np.random.Generator, days: int) -> Array:
    """No season; slowly back at its mean."""
    return _wandering(random, np.full(days * DAY, 0.65), 0.05, 0.01, 0.997)


def decaying_spikes(random: np.random.Generator, days: int) -> Array:
    """Sudden peaks at random times that decay."""
    base = np.full(days * DAY, 0.3)
    for start in random.integers(0, days * DAY - 40, days * 4):
        base[start : start + 36] += random.uniform(0.3, 1.0) * np.exp(-np.arange(36) / 9)
    return _wandering(random, base, 0.02)


def long_ramps(random: np.random.Generator, days: int) -> Array:
    """Rises of two to four hours at random times, each to a plateau of two hours."""
    base = np.full(days * DAY, 0.35)
    for start in random.integers(0, days * DAY - 100, days):
        steps, top = int(random.integers(24, 48)), random.uniform(0.4, 0.8)
        base[start : start + steps] += np.linspace(0, top, steps)
        base[start + steps : start + steps + 24] += top
    return _wandering(random, base, 0.03)


def new_job(random: np.random.Generator, days: int) -> Array:
    """A daily job of an hour that moved to another hour in the third or fourth week."""
    hour, day = clock(days)
    since = int(random.integers(14, 24))
    before, after = random.integers(0, 22, 2)
    base = 0.3 + 0.85 * ((hour >= before) & (hour < before + 1) & (day < since))
    return _wandering(random, base + 0.85 * ((hour >= after) & (hour < after + 1) & (day >= since)), 0.03)


def half_hourly(random: np.random.Generator, days: int) -> Array:
    """Five minutes of each half hour, higher in the morning."""
    hour, _ = clock(days)
    running = np.arange(len(hour)) % 6 == 0
    return _wandering(random, 0.25 + np.where(running, 0.45 + 0.3 * _hump(hour, 10, 4), 0), 0.04)


def level_shifts(random: np.random.Generator, days: int) -> Array:
    """A daily wave on a level that changes every five days."""
    hour, _ = clock(days)
    level = np.repeat(random.uniform(0.45, 0.85, days // 5 + 1), 5 * DAY)[: days * DAY]
    return _wandering(random, level * (1 + 0.25 * _sine(hour, 10)), 0.04)


def two_humps(random: np.random.Generator, days: int) -> Array:
    """Before and after noon, each day another height, lower at weekends."""
    hour, day = clock(days)
    height = np.repeat(random.uniform(0.35, 0.75, days), DAY) * np.where(day % 7 < 5, 1, 0.4)
    return _wandering(random, 0.2 + height * (_hump(hour, 10, 1.5) + 0.9 * _hump(hour, 15, 2)), 0.04)


TUNING_SHAPES: Mapping[str, Shape] = {
    shape.__name__: shape
    for shape in (
        *(working_weeks, jittered_job, six_hourly, weekday_evening, weekend_load, growing_weeks, shrinking, fast_noise),
        *(slow_walk, decaying_spikes, long_ramps, new_job, half_hourly, level_shifts, two_humps),
    )
}
