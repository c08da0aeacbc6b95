"""Budgets of points and new series per client instance and minute. Sans-I/O."""

from __future__ import annotations

from dataclasses import dataclass

from telemetry.decode.budgets import over_budget

_MS_PER_MINUTE = 60_000
_MAX_CLIENTS = 65_536  # number of clients counted; above it all counts restart


@dataclass(slots=True)
class _Use:
    minute: int
    points: int = 0
    series: int = 0


class ClientBudgets:
    """Counts by the minute in which a push was received, so that a backlog is treated like live traffic.

    Counts are in memory only and restart with the process.
    """

    def __init__(self, points: int = 2_000_000, series: int = 200_000) -> None:
        self._points = points
        self._series = series
        self._uses: dict[bytes, _Use] = {}

    def charge(self, client: bytes, received_ms: int, points: int, series: int) -> None:
        """Adds the counts of a push. `client`: as in series.identity. Raises OverBudget and then adds nothing."""
        minute = received_ms // _MS_PER_MINUTE
        use = self._uses.get(client)
        if use is None or use.minute != minute:
            if len(self._uses) >= _MAX_CLIENTS:
                self._uses.clear()
            use = self._uses[client] = _Use(minute)
        if use.points + points > self._points:
            raise over_budget("points of one client in a minute", self._points)
        if use.series + series > self._series:
            raise over_budget("new series of one client in a minute", self._series)
        use.points += points
        use.series += series
