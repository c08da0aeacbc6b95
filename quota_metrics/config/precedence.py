"""The eight levels of precedence of a client quota (KIP-55, ClientQuotaManager), as data. No I/O."""

from __future__ import annotations

from enum import StrEnum


class Named(StrEnum):
    """The kind of one dimension (user, client-id) of a quota entity."""

    EXACT = "exact"
    DEFAULT = "default"
    ABSENT = "absent"


# ClientQuotaManager's eight levels, most specific first: (user, client-id) of the configured entity.
PRECEDENCE: tuple[tuple[Named, Named], ...] = (
    (Named.EXACT, Named.EXACT),
    (Named.EXACT, Named.DEFAULT),
    (Named.EXACT, Named.ABSENT),
    (Named.DEFAULT, Named.EXACT),
    (Named.DEFAULT, Named.DEFAULT),
    (Named.DEFAULT, Named.ABSENT),
    (Named.ABSENT, Named.EXACT),
    (Named.ABSENT, Named.DEFAULT),
)
