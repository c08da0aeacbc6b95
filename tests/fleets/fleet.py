"""One fleet drawn at random: limits and rules that change, gateways that notice later or not yet, gaps, late rows."""

from __future__ import annotations

import random
from typing import NamedTuple

from tests.kit.levels_reference import ClientVerdict, client_verdicts
from tests.kit.usage_rows import MINUTE, PRODUCE, START, changing
from tests.kit.windows_reference import Expected, Key, Row, windows

MINUTES = 3
_NOISE = 1e-12  # of sums of rates
_SUMS = ("usage", "usage_p95", "group_usage", "group_p95", "usage_max", "greediest_usage")
Verdicts = dict[tuple[str, str, int], ClientVerdict]  # by user, client-id and window


class Fleet(NamedTuple):
    """The rows that arrive in time and those that arrive late, of one quota key, from `start_ms` on."""

    start_ms: int
    early: list[Row]
    late: list[Row]

    @property
    def end_ms(self) -> int:
        return self.start_ms + MINUTES * MINUTE

    def windows(self) -> dict[Key, Expected]:
        """What the reference finds."""
        return windows([*self.early, *self.late], self.start_ms, self.end_ms, MINUTE)

    def verdicts(self) -> Verdicts:
        """Its levels."""
        return client_verdicts(self.windows(), PRODUCE)

    def reasons(self) -> dict[tuple[str, str, int], set[str]]:
        """Of each verdict the right texts: where a number lies between two roundings, the order of a sum decides."""
        found: dict[tuple[str, str, int], set[str]] = {}
        of_rows = self.windows()
        for factor in (1.0, 1 - _NOISE, 1 + _NOISE):
            scaled = {
                key: window._replace(**{name: factor * getattr(window, name) for name in _SUMS})
                for key, window in of_rows.items()
            }
            for key, verdict in client_verdicts(scaled, PRODUCE).items():
                found.setdefault(key, set()).add(verdict.reason)
        return found


def drawn_fleet(seed: int, number: int, start_ms: int) -> Fleet:
    """The names of the clients of fleet `number` are its own, so that fleets can share a cluster."""
    random_ = random.Random(seed * 1_000_003 + number)
    factor = random_.choice([0.02, 0.2, 0.3, 0.4, 0.5, 1.0])
    falls = random_.random() < 0.2  # levels are held by the windows before
    gap_s = random_.randrange(180) if random_.random() < 0.3 else None
    late_share = random_.choice([0.0, 0.05, 0.5])
    early: list[Row] = []
    late: list[Row] = []
    for row in changing(random_, minutes=MINUTES, prefix=f"f{number}-"):
        at_s = (row.at_ms - START) // 1000
        if gap_s is not None and gap_s <= at_s < gap_s + 25:
            continue
        rate = row.rate * factor * (0.9 - at_s // 60 * 0.1 if falls else 1.0)
        moved = row._replace(at_ms=row.at_ms - START + start_ms, rate=rate)
        (late if random_.random() < late_share else early).append(moved)
    return Fleet(start_ms, early, late)
