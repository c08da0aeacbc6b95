"""The quota windows with which the brokers of a recording are replayed. Sans-I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from quota_metrics.windows import QuotaWindow


class BrokerWindow(NamedTuple):
    """`is_recorded`: the recorded rates are of this window."""

    window: QuotaWindow
    is_recorded: bool = True


_KAFKAS_DEFAULT = BrokerWindow(QuotaWindow())


class BrokerWindows:
    """Of each broker; of one that is not known that of another one, as brokers of a cluster usually agree."""

    def __init__(self, known: Mapping[int, BrokerWindow], default: BrokerWindow = _KAFKAS_DEFAULT) -> None:
        """`default`: when none is known."""
        self._known = known
        self._other = next(iter(known.values()), default)

    def at(self, broker_id: int) -> BrokerWindow:
        return self._known.get(broker_id, self._other)

    @property
    def distinct(self) -> frozenset[BrokerWindow]:
        """All that `at` may return."""
        return frozenset((*self._known.values(), self._other))
