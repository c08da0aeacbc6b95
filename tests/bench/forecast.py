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

from tests.kit.forecast_weeks import Scores, scored

FIRST_UNSEEN, UNSEEN = 2000, 120
LEAST_COVERED, MOST_COVERED = 0.75, 0.85


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
