"""The line of a figure: what tests.bench.__main__ gathers."""

from __future__ import annotations


def tell(name: str, value: float, unit: str, ratio: float, baseline: str, *, digits: int = 1) -> None:
    """`ratio` is to the baseline of the same run, or to the goal that the name of the baseline says."""
    print(f"bench {name} value={value:.{digits}f} unit={unit} ratio={ratio:.2f} baseline={baseline}", flush=True)
