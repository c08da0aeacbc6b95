"""What levels there are, and where they begin: a field of `Thresholds` is a level.

Its name stands in the store's enum, in the columns of level_thresholds, on /metrics and in reasons. The definitions in
words: docs/levels.md.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from quota_metrics.verdict.window import SUMMED

LARGEST_RATE: Final = 1e15  # per second; a rate above it is invalid, a limit above it (Long.MAX_VALUE) never throttles
UNEXPLAINED: Final = 0.5  # a rule does not explain throttle times that imply a limit below this share of it
MUTED_LOOKBACK_MS: Final = 600_000  # how long before a window a throttle time may mute the client in it

# Levels do not flicker: one is entered at once and left when the value is below its threshold by more than MARGIN in
# two windows in a row. The memory is bounded, so that a level does not depend on where the range of a run starts.
MARGIN: Final = 0.05
MEMORY_WINDOWS: Final = 10
# How many windows after an onset have its cause. One that far back still needs its own windows before.
CAUSE_WINDOWS: Final = MEMORY_WINDOWS // 2
NEAR_LEVELS: Final = ("warn", "critical", "throttled")  # at which harm may be the quota's: reports rank by it first


class Thresholds(NamedTuple):
    """Shares of the limit at which the levels of these names begin, ascending; and `muted_share` of a window at which
    `throttled` begins."""

    watch: float = 0.60
    warn: float = 0.80
    critical: float = 0.95
    muted_share: float = 0.01

    @property
    def steps(self) -> tuple[float, ...]:
        """The thresholds of utilisation, ascending."""
        return self[:-1]

    def errors(self) -> list[str]:
        """What is wrong with them, in words; empty when 0 < watch <= warn <= critical and 0 < muted_share <= 1."""
        errors = []
        if not self.steps[0] > 0 or list(self.steps) != sorted(self.steps):
            steps = ", ".join(f"{name} {step}" for name, step in zip(STEPS, self.steps, strict=True))
            errors.append(f"thresholds must be above 0 and must not fall: {steps}")
        if not 0 < self.muted_share <= 1:
            errors.append(f"muted_share must be above 0 and at most 1, not {self.muted_share}")
        return errors


def thresholds_in_force(stored: Sequence[Mapping[str, float]]) -> Thresholds:
    """From the newest row of level_thresholds; the defaults until `headroom serve` has stored its settings."""
    return Thresholds(**stored[0]) if stored else Thresholds()


STEPS: Final = Thresholds._fields[:-1]  # levels that begin at a share of the limit, ascending
LEVELS: Final = ("unknown", "ok", *STEPS, "throttled")  # best first; numbers in ClickHouse and on /metrics: from -1 on
_NUMBERED = ", ".join(f"'{name}' = {number}" for number, name in enumerate(LEVELS, start=-1))


_STEP_COLUMNS = "\n".join(
    f"    {f'`{name}`':<13} Float64  COMMENT 'share of the limit at which {name} begins'," for name in STEPS
)
_SUMMED_COLUMNS = ",\n".join(
    f"    {f'`{name}`':<18} UInt64                  COMMENT '{text}'" for name, text in SUMMED.items()
)
# What the templates of deploy/clickhouse/schema name.
SCHEMA_VALUES: Final[Mapping[str, object]] = {
    "largest_rate": f"{LARGEST_RATE:.0f}",
    "level_type": f"Enum8({_NUMBERED})",
    "level_steps": _STEP_COLUMNS,
    "summed_columns": _SUMMED_COLUMNS,
}
