"""Generated usage, and how forecasts of it score.

The model was tuned on `weeks` and on other shapes, but on none of the nine of SHAPES: each makes the utilisation of
five minutes, from a Monday on.
"""

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from spark_jobs.transforms.forecast_members import Array
from spark_jobs.transforms.forecast_model import HORIZON
from spark_jobs.transforms.forecast_scores import LEADS, METHODS, ratio, replay

DAY = 288  # steps of five minutes
MONDAY = 4 * DAY  # 1970-01-05
Scores = dict[str, dict[str, float]]
HOUR = DAY // 24
Shape = Callable[[np.random.Generator, int], Array]


def weeks(seed: int, days: int = 21, noise: float = 0.02) -> Array:
    """Utilization with a daily peak on working days that sometimes reaches the limit, slow drift and bursts of an
    hour."""
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


def scored(seeds: Iterable[int]) -> Scores:
    """The figures of each method over the third weeks of these seeds."""
    rows = []
    for seed in seeds:
        values = weeks(seed)
        busy = [at for at in range(14 * DAY, len(values) - HORIZON, 4) if 10 <= at % DAY / 12 <= 17]
        rows += replay(values, MONDAY, busy)
    return {name: figures([row for row in rows if row["method"] == name]) for name in METHODS}


def figures(own: list[dict[str, float | str]]) -> dict[str, float]:
    numbers = {key: np.array([float(row[key]) for row in own]) for key in own[0] if key != "method"}
    total = {key: float(np.nansum(values)) for key, values in numbers.items()}
    errors = numbers["lead_error"][~np.isnan(numbers["lead_error"])]
    found = {"pinball": total["pinball"] / len(own), "coverage": total["coverage"] / len(own)}
    found["lead_error"] = float(np.median(errors)) if len(errors) else float("inf")
    for lead in LEADS:
        found[f"precision_{lead}"] = ratio(total[f"hit_{lead}"], total[f"flagged_{lead}"])
        found[f"recall_{lead}"] = ratio(total[f"hit_{lead}"], total[f"event_{lead}"])
        found[f"brier_{lead}"] = ratio(total[f"brier_{lead}"], total[f"known_{lead}"])
    return found


def clock(days: int) -> tuple[Array, Array]:
    steps = np.arange(days * DAY)
    return steps % DAY / HOUR, (steps // DAY).astype(float)


def _noisy(random: np.random.Generator, base: Array, wander: float = 0.02) -> Array:
    """`base` with a wandering level and noise per step."""
    level, levels = 0.0, np.zeros(len(base))
    for i, pushed in enumerate(random.normal(0, wander / 3, len(base))):
        level = levels[i] = 0.98 * level + pushed
    return np.maximum(base * random.uniform(0.97, 1.03) + levels + random.normal(0, 0.015, len(base)), 0)


def nightly_job(random: np.random.Generator, days: int, start: float = 130 / 60) -> Array:
    """Quiet, but for 25 minutes above the limit each night from 02:10."""
    hour, _ = clock(days)
    running = (hour >= start - 1e-9) & (hour < start + 25 / 60 - 1e-9)
    return np.where(running, random.uniform(1.05, 1.25), 0.25) + random.normal(0, 0.02, len(hour))


def office_week(random: np.random.Generator, days: int) -> Array:
    """High on five days with a peak at ten, low at weekends; Mondays are the highest."""
    hour, day = clock(days)
    height = np.array([0.85, 0.7, 0.7, 0.72, 0.6, 0.15, 0.1])[day.astype(int) % 7]
    return _noisy(random, 0.2 + height * np.exp(-(((hour - 10) / 2.5) ** 2)), 0.05)


def two_peaks(random: np.random.Generator, days: int) -> Array:
    """Morning and evening, the evening near the limit."""
    hour, _ = clock(days)
    peaks = 0.5 * np.exp(-(((hour - 9) / 1.5) ** 2)) + 0.72 * np.exp(-(((hour - 20) / 1.2) ** 2))
    return _noisy(random, 0.25 + peaks, 0.06)


def growth(random: np.random.Generator, days: int) -> Array:
    """A daily wave on a level that grows until its peaks reach the limit."""
    hour, day = clock(days)
    level = 0.35 + 0.45 * np.arange(len(day)) / len(day)
    return _noisy(random, level * (1 + 0.3 * np.sin((hour - 8) / 24 * 2 * np.pi)), 0.03)


def hourly_cron(random: np.random.Generator, days: int) -> Array:
    """A burst of ten minutes each hour, higher at midday."""
    hour, _ = clock(days)
    running = np.arange(len(hour)) % HOUR < 2
    midday = np.exp(-(((hour - 13) / 3) ** 2))
    return _noisy(random, 0.2 + np.where(running, 0.5 + 0.35 * midday, 0.0), 0.02)


def sunday_batch(random: np.random.Generator, days: int) -> Array:
    """Two hours above the limit, once a week; a small daily wave besides."""
    hour, day = clock(days)
    running = (day.astype(int) % 7 == 6) & (hour >= 3) & (hour < 5)
    return _noisy(random, np.where(running, 1.15, 0.3 + 0.1 * np.sin(hour / 24 * 2 * np.pi)), 0.02)


def random_walk(random: np.random.Generator, days: int) -> Array:
    """No season: a level that wanders and is drawn back."""
    level, found = 0.6, []
    for pushed in random.normal(0, 0.02, days * DAY):
        level += 0.004 * (0.65 - level) + pushed
        found.append(level)
    walked: Array = np.maximum(np.array(found), 0)
    return walked


def bursts(random: np.random.Generator, days: int) -> Array:
    """Quiet with ramps at random times: 40 minutes up, then at once down."""
    base = np.full(days * DAY, 0.35)
    for start in random.integers(0, days * DAY - 20, days * 3):
        base[start : start + 8] += np.linspace(0.1, random.uniform(0.3, 0.9), 8)
    return _noisy(random, base, 0.02)


def moved_level(random: np.random.Generator, days: int) -> Array:
    """A daily wave whose level moved up within the third week, so that its peaks reach the limit since."""
    hour, day = clock(days)
    level = np.where(day >= random.integers(15, 21), 0.78, 0.55)
    return _noisy(random, level * (1 + 0.28 * np.sin((hour - 8) / 24 * 2 * np.pi)), 0.04)


SHAPES: Mapping[str, Shape] = {
    shape.__name__: shape
    for shape in (
        nightly_job, office_week, two_peaks, growth, hourly_cron, sunday_batch, random_walk, bursts, moved_level
    )
}  # fmt: skip
