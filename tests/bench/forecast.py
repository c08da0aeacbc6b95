"""Scores of the forecast beside simple forecasts and a library, on shapes of usage that it was not tuned on.

    python -m tests.bench.forecast

Nine shapes (`tests/kit/forecasts.py`), five weeks each, and SEEDS buckets of each shape: the forecast knows the
weeks up to an origin, of which there are 48 in a shape, spread over the fourth week, and is scored on what follows.
Constants were chosen on other shapes and on `forecasts.weeks`, with other seeds. MSTL (statsforecast) takes part where
it is installed. The baseline of a figure is the method that is best in it.
"""

import math

import numpy as np

from spark_jobs.transforms.forecast_model import LIMIT
from spark_jobs.transforms.forecast_scores import METHODS, WEEK, score
from tests.bench.figure import tell
from tests.kit.forecasts import DAY, MONDAY, SHAPES, Scores, figures

FIRST_UNSEEN, SEEDS, ORIGINS, DAYS = 5000, 4, 48, 35
OURS = "headroom"
_UNITS = {"lead_error": "steps", "coverage": "share"}


def scored() -> Scores:
    """The figures of each method over all shapes."""
    rows: dict[str, list[dict[str, float | str]]] = {method: [] for method in METHODS}
    for shape in SHAPES.values():
        for seed in range(FIRST_UNSEEN, FIRST_UNSEEN + SEEDS):
            values = shape(np.random.default_rng(seed), DAYS)
            first = 21 * DAY + 7 + seed % SEEDS
            origins = np.linspace(first, 28 * DAY - 1, ORIGINS // SEEDS).astype(int)
            for origin in (at for at in origins if values[at - 1] < LIMIT):
                for method, forecast in METHODS.items():
                    made = forecast(values[:origin], MONDAY)
                    rows[method].append({"method": method, **score(made, values[origin : origin + WEEK])})
    return {method: figures(own) for method, own in rows.items()}


def main() -> None:
    scores = scored()
    for figure, value in scores[OURS].items():
        others = {name: of_method[figure] for name, of_method in scores.items() if name != OURS}
        best = max if figure.startswith(("precision", "recall")) else min
        name = best(others, key=others.__getitem__)
        ratio = value / others[name] if others[name] else math.inf
        tell(f"forecast_{figure}", value, _UNITS.get(figure, "score"), ratio, name.replace(" ", "_"), digits=4)


if __name__ == "__main__":
    main()
