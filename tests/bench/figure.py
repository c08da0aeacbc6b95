"""The output line of a figure, collected by tests.bench.__main__."""


def tell(name: str, value: float, unit: str, ratio: float, baseline: str, *, digits: int = 1) -> None:
    """`ratio` is relative to the baseline of the same run, or to the goal named by `baseline`."""
    print(f"bench {name} value={value:.{digits}f} unit={unit} ratio={ratio:.2f} baseline={baseline}", flush=True)
