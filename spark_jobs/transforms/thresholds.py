"""The thresholds of levels: configuration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The utilisation from which each level holds. Raises ValueError unless 0 < watch <= warn <= critical."""

    watch: float = 0.60
    warn: float = 0.80
    critical: float = 0.95

    def __post_init__(self) -> None:
        if not 0 < self.watch <= self.warn <= self.critical:
            given = f"watch {self.watch}, warn {self.warn}, critical {self.critical}"
            raise ValueError(f"thresholds must be above 0 and must not fall: {given}")
