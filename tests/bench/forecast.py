"""Scores of the forecast and of two simple forecasts on generated weeks that it was not tuned on.

    python -m tests.bench.forecast [FIRST_SEED COUNT]

Each seed is a bucket of three weeks: the forecast knows the weeks up to an origin, which moves through the working
hours of the third one, and is scored on the three hours that follow. The model's constants and the probabilities from
which it flags a bucket were chosen on seeds 0 to 39 and 1000 to 1119. The default, seeds 2000 to 2119, takes ten
minutes: a bucket has about two events at 5 minutes of lead, too few for a verdict on fewer seeds. Exits with 1 if a
figure is not better than both simple forecasts' or the coverage is not between 0.75 and 0.85.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import numpy as np

from spark_jobs.transforms.forecast_model import HORIZON, STEP_MS, Array
from spark_jobs.transforms.forecast_scores import LEADS, METHODS, ratio, replay

DAY = 86_400_000 // STEP_MS
MONDAY = 4 * DAY  # 1970-01-05
FIRST_UNSEEN, UNSEEN = 2000, 120
LEAST_COVERED, MOST_COVERED = 0.75, 0.85

Scores = dict[str, dict[str, float]]


def weeks(seed: int, days: int = 21, noise: float = 0.02) -> Array:
    """Utilisation with a daily peak on working days that sometimes reaches the limit, slow drift and bursts of an
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
    return {name: _figures([row for row in rows if row["method"] == name]) for name in METHODS}


def _figures(own: list[dict[str, float | str]]) -> dict[str, float]:
    numbers = {key: np.array([float(row[key]) for row in own]) for key in own[0] if key != "method"}
    total = {key: float(np.nansum(values)) for key, values in numbers.items()}
    errors = numbers["lead_error"][~np.isnan(numbers["lead_error"])]
    found = {"pinball": total["pinball"] / len(own), "coverage": total["coverage"] / len(own)}
    found["lead_error"] = float(np.median(errors)) if len(errors) else float("inf")
    for lead in LEADS:
        found[f"precision_{lead}"] = ratio(total[f"hit_{lead}"], total[f"flagged_{lead}"])
        found[f"recall_{lead}"] = ratio(total[f"hit_{lead}"], total[f"event_{lead}"])
        found[f"brier_{lead}"] = total[f"brier_{lead}"] / len(own)
    return found


def short(scores: Scores) -> list[str]:
    """The figures that are not better than those of both simple forecasts, and coverage out of bounds."""
    ours, others = scores["headroom"], (scores["last value"], scores["linear"])
    found = []
    for figure, value in ours.items():
        if figure == "coverage":
            good = LEAST_COVERED <= value <= MOST_COVERED
        elif figure.startswith(("precision", "recall")):
            good = all(value > other[figure] for other in others)
        else:
            good = all(value < other[figure] for other in others)
        found += [] if good else [figure]
    return found


def main() -> None:
    first, count = (int(part) for part in sys.argv[1:3]) if len(sys.argv) > 2 else (FIRST_UNSEEN, UNSEEN)
    scores = scored(range(first, first + count))
    print(f"{'':12}", *(f"{name:>12}" for name in scores))
    for figure in scores["headroom"]:
        print(f"{figure:12}", *(f"{of_method[figure]:12.4f}" for of_method in scores.values()))
    if missed := short(scores):
        sys.exit(f"not better: {', '.join(missed)}")


if __name__ == "__main__":
    main()
