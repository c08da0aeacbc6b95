"""Kafka releases by feature level (org.apache.kafka.server.common.MetadataVersion). Sans-I/O."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Final, TypeAlias

Release: TypeAlias = tuple[int, int]

METADATA_VERSION: Final = "metadata.version"
PROTOCOL_VERSION: Final = "inter.broker.protocol.version"  # of brokers before 4.0

_SINCE_3_8: Final = (3, 8)
# The first level of each release. 3.3 is the first release with KRaft for production.
_FIRST_LEVELS: Final = (
    (1, (3, 0)), (2, (3, 1)), (3, (3, 2)), (4, (3, 3)), (8, (3, 4)), (9, (3, 5)), (12, (3, 6)), (15, (3, 7)),
    (20, (3, 8)), (21, (3, 9)), (22, (4, 0)), (26, (4, 1)), (28, (4, 2)), (30, (4, 3)), (31, (4, 4)),
)  # fmt: skip
_LEVELS: Final = [level for level, _ in _FIRST_LEVELS]


def release_of_level(level: int) -> Release | None:
    """The release that introduced the level; the newest known one for later levels, None below the first."""
    place = bisect_right(_LEVELS, level)
    return _FIRST_LEVELS[place - 1][1] if place else None


def release_of(supported: Mapping[str, int], configs: Mapping[str, str]) -> Release | None:
    """A broker's release: the highest metadata.version that it supports, or with ZooKeeper its
    inter.broker.protocol.version, whose default is its own release and which is lower during an upgrade."""
    if METADATA_VERSION in supported:
        return release_of_level(supported[METADATA_VERSION])
    return release_of_text(configs.get(PROTOCOL_VERSION, ""))


def release_of_text(text: str) -> Release | None:
    """Of `4.3` or `3.7-IV4`; None when it is neither."""
    parts = text.partition("-")[0].split(".")
    if len(parts) < 2 or not all(part.isascii() and part.isdigit() and len(part) < 4 for part in parts[:2]):
        return None
    return int(parts[0]), int(parts[1])


def before_3_8(release: Release | None) -> bool:
    """Whether rates follow the rule of `quota_metrics.windows.Rate` up to 3.7."""
    return release is not None and release < _SINCE_3_8


def release_text(release: Release | None) -> str:
    return "unknown" if release is None else f"{release[0]}.{release[1]}"
