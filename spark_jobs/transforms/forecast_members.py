"""Members of a forecast that repeat earlier days, and the share that each member deserves. NumPy only.

An earlier day is a path: what happened after the same minute of that day. Paths of the same weekday are a member of
their own, with neighbouring steps, because there are few weeks. Both also come moved to the present level, from which
they fade back. The newest days are one more, which notices first that something began or ended. Each member is judged
by its continuous ranked probability score (CRPS: Gneiting and Raftery, 2007) at earlier moments of the same bucket,
near the same time of day; the smaller its past errors, the more of the combined paths are its own. So a nightly job,
which no trend announces, is foreseen by the days before. A level that is outside of those of a member's days counts as
a further error: calm days say nothing about a rise that none of them had.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

DAY = 288  # steps of five minutes
_MOST_DAYS, _MOST_WEEKS, _NEWEST_DAYS = 21, 8, 3
_NEIGHBOURS = (-1, 0, 1)  # steps around the same minute of earlier weeks
_LEVEL_STEPS = 3  # newest steps whose mean is the present level
_FADING = 0.98  # damping, per step, of the distance from the present level
_SHARPNESS = 9  # power of the inverse error


def repeated(values: Array, origins: Indices, horizon: int, days: int) -> tuple[dict[str, Array], dict[str, Array]]:
    """Paths of each member at each origin (origins x paths x horizon), and how far the level there is outside of those
    at the same minute of the member's days (origins). `origins`: index of the last known value, with at least `days`
    whole days before it. Members for which the history is too short are absent."""
    members: dict[str, Array] = {}
    gaps: dict[str, Array] = {}
    of_days = [day * DAY for day in range(1, min(days, _MOST_DAYS) + 1)]
    ages = {
        "newest days": of_days[:_NEWEST_DAYS],
        "days": of_days,
        "weeks": [
            week * 7 * DAY + near for week in range(1, min((days * DAY - 1) // (7 * DAY), _MOST_WEEKS) + 1)
            for near in _NEIGHBOURS
        ],
    }  # fmt: skip
    steps = np.arange(1 - _LEVEL_STEPS, horizon + 1)
    level = values[origins[:, None] + steps[:_LEVEL_STEPS]].mean(axis=1)
    for name, of_member in ages.items():
        if len(of_member) < 2:
            continue
        then = values[origins[:, None, None] - np.array(of_member)[:, None] + steps]
        paths = then[..., _LEVEL_STEPS:]
        moved = level[:, None] - then[..., :_LEVEL_STEPS].mean(axis=2)
        members[name] = paths
        gaps[name] = np.maximum(np.maximum(moved.min(axis=1), -moved.max(axis=1)), 0.0)
        if name != "newest days":
            members[f"moved {name}"] = np.maximum(paths + moved[..., None] * _FADING ** steps[_LEVEL_STEPS:], 0.0)
            gaps[f"moved {name}"] = gaps[name]
    return members, gaps


def crps(paths: Array, actual: Array) -> float:
    """Mean score of ensembles (... x paths x horizon) for what happened (... x horizon). A small ensemble is judged as
    the few paths that it is, not as the distribution from which they come."""
    count = paths.shape[-2]
    weights = (2 * np.arange(count) - count + 1) / count**2
    spread = np.einsum("k,...kh->...h", weights, np.sort(paths, axis=-2))
    return float((np.abs(paths - actual[..., None, :]).mean(axis=-2) - spread).mean())


def combined(members: Mapping[str, Array], losses: Mapping[str, float], count: int) -> Array:
    """About `count` paths, evenly taken from those of each member: the smaller its past error, the more."""
    strength = {name: (1e-4 + max(loss, 0.0)) ** -_SHARPNESS for name, loss in losses.items()}
    total = sum(strength.values())
    parts = []
    for name, paths in members.items():
        wanted = round(strength[name] / total * count)
        parts.append(paths[np.linspace(0, len(paths) - 1, wanted).round().astype(np.int64)])
    return np.concatenate(parts)
