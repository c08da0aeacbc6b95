"""What a further network process saw pass between clients and brokers, on its way to the parent's usage meter."""

from __future__ import annotations

from collections.abc import Callable

from exporters.model import Exchange
from quota_metrics.measure.meter import FETCH, PRODUCE, SHARE_FETCH

_METERED = frozenset({PRODUCE, FETCH, SHARE_FETCH})  # of all others only the throttling counts
_TELL_AT_ROWS = 1_000
_TELL_AT_CHARS = 1 << 18
_MAX_ROWS = 20_000
_MAX_NAME_CHARS = _MAX_ROWS * 256  # a client that invents names of 32 kB fills it sooner


class ExchangeLog:
    """Exchanges until they are taken; `is_due` is called when they are many. Bounded: `left_out` counts the rest."""

    def __init__(self, is_due: Callable[[], None]) -> None:
        self.left_out = 0
        self._is_due = is_due
        self._exchanges: list[Exchange] = []
        self._name_chars = 0

    def exchange(self, exchange: Exchange) -> None:
        """As quota_metrics.measure.meter.UsageMeter.exchange."""
        if exchange.api_key not in _METERED and exchange.throttle_ms <= 0:
            return
        if len(self._exchanges) >= _MAX_ROWS or self._name_chars >= _MAX_NAME_CHARS:
            self.left_out += 1
            return
        self._exchanges.append(exchange)
        self._name_chars += len(exchange.principal) + len(exchange.client_id)
        if len(self._exchanges) >= _TELL_AT_ROWS or self._name_chars >= _TELL_AT_CHARS:
            self._is_due()

    def take(self) -> list[Exchange]:
        """What there is, in its order."""
        exchanges, self._exchanges, self._name_chars = self._exchanges, [], 0
        return exchanges
