"""Numbers and names in the words of reasons. Numbers are rounded half up."""

import math
from typing import Final

from quota_metrics.amounts import UNITS
from quota_metrics.verdict.thresholds import LARGEST_RATE

_SIZES: Final = tuple((1000.0**power, f" {prefix}B/s") for power, prefix in enumerate("kMGTP", start=1))
_ROUNDS_UP: Final = 0.99995  # from this share of a unit on, a rate would round to 1000.0 of the unit before


def rounded(number: float) -> str:
    """`12`."""
    return str(math.floor((number if number < LARGEST_RATE else LARGEST_RATE) + 0.5))


def tenths(number: float) -> str:
    """`12.3`."""
    in_tenths = number * 10
    whole = math.floor((in_tenths if in_tenths < LARGEST_RATE else LARGEST_RATE) + 0.5)
    return f"{whole // 10}.{whole % 10}"


def percent(share: float) -> str:
    """`84.9 %`."""
    return f"{tenths(share * 100)} %"


def amount(rate: float, quota_key: str) -> str:
    """A rate with the unit of its quota key: `512 B/s`, `84.9 kB/s`, `12.5 %`."""
    unit = UNITS.get(quota_key)
    if unit is not None:
        return f"{tenths(rate)} {unit}"
    if rate < _ROUNDS_UP * 1000.0:
        return f"{rounded(rate)} B/s"
    power = 0
    while power < len(_SIZES) - 1 and rate >= _ROUNDS_UP * _SIZES[power + 1][0]:
        power += 1
    size, unit_of_size = _SIZES[power]
    return tenths(rate / size) + unit_of_size


def duration(ms: float) -> str:
    """`905 ms`, `1.5 s`."""
    return f"{tenths(ms / 1000)} s" if ms >= 999.5 else f"{rounded(ms)} ms"


def name_of_other(user: str, client_id: str, own_client_id: str) -> str:
    """Another client, to one with this client id: `etl`; `user=bob` when both have the same."""
    return f"user={user}" if client_id == own_client_id else client_id or "(no client id)"


def clock(time_ms: int) -> str:
    """`10:04 UTC`."""
    return f"{time_ms // 3_600_000 % 24:02}:{time_ms // 60_000 % 60:02} UTC"
