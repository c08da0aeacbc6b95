"""Scores of the forecast, of simple forecasts and of a library on shapes of usage that it was not tuned on.

    python -m tests.bench.forecast [SEEDS [FIRST_SEED]]

Nine shapes (`tests/kit/forecasts.py`), five weeks each, and SEEDS buckets of each shape: the forecast knows the
weeks up to an origin, of which there are 48 in a shape, spread over the fourth week, and is scored on what follows.
Constants were chosen on other shapes and on `forecasts.weeks`, with other seeds. MSTL (statsforecast) takes part where
it is installed. The last line says which figures are not better than those of all others, over all shapes. `cpu_ms` is
a forecast's.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Mapping

import numpy as np

from spark_jobs.transforms.forecast_model import LIMIT
from spark_jobs.transforms.forecast_scores import METHODS, WEEK, score
from tests.bench.figure import tell
from tests.kit.forecasts import DAY, MONDAY, SHAPES, Scores, Shape, figures

FIRST_UNSEEN, SEEDS, ORIGINS, DAYS = 5000, 4, 48, 35
LEAST_COVERED, MOST_COVERED = 0.75, 0.85
ALL, OURS = "all shapes", "headroom"
_UNITS = {"lead_error": "steps", "coverage": "share", "cpu_ms": "ms"}


def scored(shapes: Mapping[str, Shape], seeds: range) -> dict[str, Scores]:
    """The figures of each method, by shape and over all shapes."""
    rows: dict[str, dict[str, list[dict[str, float | str]]]] = {}
    cpu = dict.fromkeys(METHODS, 0.0)
    for name, shape in shapes.items():
        for seed in seeds:
            values = shape(np.random.default_rng(seed), DAYS)
            first = 21 * DAY + 7 + seed % len(seeds)
            origins = np.linspace(first, 28 * DAY - 1, ORIGINS // len(seeds)).astype(int)
            for origin in (at for at in origins if values[at - 1] < LIMIT):
                for method, forecast in METHODS.items():
                    before = time.process_time()
                    made = forecast(values[:origin], MONDAY)
                    cpu[method] += time.process_time() - before
                    row: dict[str, float | str] = {"method": method, **score(made, values[origin : origin + WEEK])}
                    rows.setdefault(name, {}).setdefault(method, []).append(row)
    scores = {name: {method: figures(own) for method, own in of_shape.items()} for name, of_shape in rows.items()}
    scores[ALL] = {}
    for method, seconds in cpu.items():
        own = [row for of_shape in rows.values() for row in of_shape[method]]
        scores[ALL][method] = {**figures(own), "cpu_ms": seconds * 1000 / len(own)}
    return scores


def best_other(figure: str, scores: Scores) -> tuple[str, float]:
    """The other method that is best in this figure, and its value."""
    others = {name: of_method[figure] for name, of_method in scores.items() if name != OURS}
    choose = max if figure.startswith(("precision", "recall")) else min
    name = choose(others, key=others.__getitem__)
    return name, others[name]


def short(scores: Scores) -> list[str]:
    """The figures that are not better than those of all other methods, and coverage out of bounds."""
    missed = []
    for figure, value in scores[OURS].items():
        best = best_other(figure, scores)[1]
        if figure == "coverage":
            good = LEAST_COVERED <= value <= MOST_COVERED
        elif figure == "cpu_ms":
            good = "mstl" not in scores or value <= scores["mstl"][figure] / 10
        elif figure.startswith(("precision", "recall")):
            good = value >= best
        else:
            good = value < best or value == 0  # nothing is better than no error
        missed += [] if good else [figure]
    return missed


def _told(scores: Scores) -> None:
    """The lines from which `make bench` makes its page. CPU is compared with that of MSTL only."""
    for figure, value in scores[OURS].items():
        name, best = best_other(figure, scores)
        if figure == "cpu_ms":
            name, best = "mstl", scores.get("mstl", {}).get(figure, math.inf)
        ratio = value / best if best else math.inf
        tell(f"forecast_{figure}", value, _UNITS.get(figure, "score"), ratio, name.replace(" ", "_"), digits=4)


def _table(title: str, scores: Scores, shown: Iterable[str]) -> None:
    print(f"{title:16}", *(f"{name:>12}" for name in scores))
    for figure in shown:
        print(f"  {figure:14}", *(f"{of_method[figure]:12.4f}" for of_method in scores.values()))


def main() -> None:
    numbers = [int(part) for part in sys.argv[1:]]
    count, first = (*numbers, *(SEEDS, FIRST_UNSEEN)[len(numbers) :])
    scores = scored(SHAPES, range(first, first + count))
    for name, of_shape in scores.items():
        _table(name, of_shape, of_shape["headroom"] if name == ALL else ("pinball", "coverage", "brier_12", "brier_36"))
    _told(scores[ALL])
    print(f"not better than all others: {', '.join(short(scores[ALL])) or 'none'}")


if __name__ == "__main__":
    main()
