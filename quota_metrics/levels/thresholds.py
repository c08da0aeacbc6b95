"""The numbers that levels depend on. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

LARGEST_RATE: Final = 1e15  # per second; a rate above it is invalid, a limit above it (Long.MAX_VALUE) never throttles
MUTED_LOOKBACK_MS: Final = 600_000  # how long before a window a throttle time may mute the client in it

# Levels do not flicker: one is entered at once and left when the value is below its threshold by more than MARGIN in
# two windows in a row. The memory is bounded, so that a level does not depend on where the range of a run starts.
MARGIN: Final = 0.05
MEMORY_WINDOWS: Final = 10

LEVELS: Final = ("unknown", "ok", "watch", "warn", "critical", "throttled")  # best first; Enum8 in ClickHouse: -1 to 4


class Thresholds(NamedTuple):
    """Shares of the limit at which levels begin; `muted_share` of a window at which `throttled` begins."""

    watch: float = 0.60
    warn: float = 0.80
    critical: float = 0.95
    muted_share: float = 0.01

    @property
    def steps(self) -> tuple[float, float, float]:
        """The thresholds of utilisation, ascending."""
        return self.watch, self.warn, self.critical

    def errors(self) -> list[str]:
        """What is wrong with them, in words; empty when 0 < watch <= warn <= critical and 0 < muted_share <= 1."""
        found = []
        if not 0 < self.watch <= self.warn <= self.critical:
            given = f"watch {self.watch}, warn {self.warn}, critical {self.critical}"
            found.append(f"thresholds must be above 0 and must not fall: {given}")
        if not 0 < self.muted_share <= 1:
            found.append(f"muted_share must be above 0 and at most 1, not {self.muted_share}")
        return found


def level_of_number(number: int) -> str:
    """The level whose value in ClickHouse's Enum8 and on /metrics is `number`, from -1 to 4. Raises IndexError."""
    return LEVELS[range(len(LEVELS))[number + 1]]


# What the templates of deploy/clickhouse/schema name.
SCHEMA_VALUES: Final[Mapping[str, object]] = {"largest_rate": f"{LARGEST_RATE:.0f}"}
