"""Exchanges between clients and brokers in a further network process, buffered for the parent's usage meter."""

from __future__ import annotations

from collections.abc import Callable

from exporters.model import Exchange, ExchangeValues
from quota_metrics.measure.usage_meter import FETCH, PRODUCE, SHARE_FETCH

_METERED = frozenset({PRODUCE, FETCH, SHARE_FETCH})  # for other APIs only throttling is metered
_DUE_AT_ROWS = 1_000
_DUE_AT_CHARS = 1 << 18
_MAX_ROWS = 20_000
_MAX_NAME_CHARS = _MAX_ROWS * 256  # bounds memory when clients use names of up to 32 kB


class ExchangeLog:
    """Buffers exchanges until `take`; calls `is_due` when many are buffered. Bounded: `left_out` counts dropped
    ones."""

    def __init__(self, is_due: Callable[[], None]) -> None:
        self.left_out = 0
        self._is_due = is_due
        self._exchanges: list[Exchange] = []
        self._name_chars = 0

    def exchange(self, values: ExchangeValues) -> None:
        """Same signature as quota_metrics.measure.usage_meter.UsageMeter.exchange."""
        exchange = Exchange(*values)
        if exchange.api_key not in _METERED and exchange.throttle_ms <= 0:
            return
        if len(self._exchanges) >= _MAX_ROWS or self._name_chars >= _MAX_NAME_CHARS:
            self.left_out += 1
            return
        self._exchanges.append(exchange)
        self._name_chars += len(exchange.principal) + len(exchange.client_id)
        if len(self._exchanges) >= _DUE_AT_ROWS or self._name_chars >= _DUE_AT_CHARS:
            self._is_due()

    def take(self) -> list[Exchange]:
        """Removes and returns the buffered exchanges, oldest first."""
        exchanges, self._exchanges, self._name_chars = self._exchanges, [], 0
        return exchanges
