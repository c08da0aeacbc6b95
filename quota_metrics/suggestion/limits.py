"""The limit that fits a fleet, who is beyond it, and how sure that is. Sans-I/O."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from quota_metrics.config.validation import is_whole
from quota_metrics.verdict.thresholds import Thresholds

FULL: Final = Thresholds().critical  # utilisation (99th percentile) above which a quota is too low
TARGET: Final = Thresholds().warn  # share of a suggested limit that the demand takes
_SPREAD: Final = 4  # (third quartile / median) to this power above the third quartile: outliers
_LEAST_FENCE: Final = 2.0  # in third quartiles: where all want about the same
_DIGITS: Final = 2
FEWEST: Final = 4  # clients of a default; fewer show no spread
MEDIUM_DAYS: Final = 2
HIGH_DAYS: Final = 7


class Confidence(StrEnum):
    """By days (UTC) with usage: fewer than MEDIUM_DAYS, fewer than HIGH_DAYS, more."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


def confidence(days: int, *, is_certain: bool = True) -> Confidence:
    """`is_certain`: the demand is known, and of a default there are clients enough; else the confidence is low."""
    if days < MEDIUM_DAYS or not is_certain:
        return Confidence.LOW
    return Confidence.MEDIUM if days < HIGH_DAYS else Confidence.HIGH


class Bulk(NamedTuple):
    """What most of a fleet want: `size` demands up to `highest`, the greatest one that is not above `fence`."""

    fence: float
    highest: float
    size: int


def bulk(demands: Sequence[float]) -> Bulk:
    """Of at least one demand, all above 0.

    The fence is that of skewed data: as far above the third quartile, in ratios, as four times the third quartile is
    above the median, and at least twice the third quartile. So at most about a quarter is beyond it, of a log-normal
    fleet one in 2,500 clients, and many idle clients do not move it.
    """
    ordered = sorted(demands)
    median, third = (ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.75))
    fence = third * max((third / median) ** _SPREAD, _LEAST_FENCE)
    within = [demand for demand in ordered if demand <= fence]
    return Bulk(fence, within[-1], len(within))


def fitting(demand: float, quota_key: str) -> float:
    """The limit of which the demand is TARGET, rounded up to two digits; a whole number where Kafka wants one."""
    limit = demand / TARGET
    unit = 10.0 ** (math.floor(math.log10(limit)) - _DIGITS + 1)
    if is_whole(quota_key):
        unit = max(unit, 1.0)
    rounded = math.ceil(limit / unit - 1e-9) * unit
    return round(rounded, 9)
