"""The eight levels of precedence of a client quota (KIP-55, ClientQuotaManager), as data. No I/O."""

from __future__ import annotations

from enum import StrEnum


class Match(StrEnum):
    """The kind of one dimension (user, client-id) of a quota entity."""

    EXACT = "exact"
    DEFAULT = "default"
    ABSENT = "absent"


# ClientQuotaManager's eight levels, most specific first: (user, client-id) of the configured entity.
PRECEDENCE: tuple[tuple[Match, Match], ...] = (
    (Match.EXACT, Match.EXACT),
    (Match.EXACT, Match.DEFAULT),
    (Match.EXACT, Match.ABSENT),
    (Match.DEFAULT, Match.EXACT),
    (Match.DEFAULT, Match.DEFAULT),
    (Match.DEFAULT, Match.ABSENT),
    (Match.ABSENT, Match.EXACT),
    (Match.ABSENT, Match.DEFAULT),
)
