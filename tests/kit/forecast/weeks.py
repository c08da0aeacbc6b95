"""Generated weeks of utilization, and how forecasts of them score."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from spark_jobs.transforms.forecast_members import Array
from spark_jobs.transforms.forecast_model import HORIZON, STEP_MS
from spark_jobs.transforms.forecast_scores import LEADS, METHODS, ratio, replay

DAY = 86_400_000 // STEP_MS
MONDAY = 4 * DAY  # 1970-01-05
Scores = dict[str, dict[str, float]]


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
    """The figures of one method's rows."""
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
