"""What a further network process saw pass between clients and brokers, on its way to the parent's usage meter."""

from __future__ import annotations

from collections.abc import Callable

from quota_metrics.measure.meter import FETCH, PRODUCE, SHARE_FETCH

# principal, client_id, broker_id, api_key, request_bytes, response_bytes, throttle_ms, now_ms
Row = tuple[str, str, int, int, int, int, int, int]

_METERED = frozenset({PRODUCE, FETCH, SHARE_FETCH})  # of all others only the throttling counts
_TELL_AT_ROWS = 1_000
_TELL_AT_CHARS = 1 << 18
_MAX_ROWS = 20_000
_MAX_NAME_CHARS = _MAX_ROWS * 256  # a client that invents names of 32 kB fills it sooner


class ExchangeLog:
    """Rows until they are taken; `is_due` is called when they are many. Bounded: what is too much is `left_out`."""

    def __init__(self, is_due: Callable[[], None]) -> None:
        self.left_out = 0
        self._is_due = is_due
        self._rows: list[Row] = []
        self._name_chars = 0

    def exchange(
        self,
        *,
        principal: str,
        client_id: str,
        address: str,
        broker_id: int,
        api_key: int,
        request_bytes: int,
        response_bytes: int,
        throttle_ms: int,
        now_ms: int,
    ) -> None:
        """As quota_metrics.measure.meter.UsageMeter.exchange."""
        if api_key not in _METERED and throttle_ms <= 0:
            return
        if len(self._rows) >= _MAX_ROWS or self._name_chars >= _MAX_NAME_CHARS:
            self.left_out += 1
            return
        row = (principal, client_id, broker_id, api_key, request_bytes, response_bytes, throttle_ms, now_ms)
        self._rows.append(row)
        self._name_chars += len(principal) + len(client_id)
        if len(self._rows) >= _TELL_AT_ROWS or self._name_chars >= _TELL_AT_CHARS:
            self._is_due()

    def take(self) -> list[Row]:
        """What there is, in its order."""
        rows, self._rows, self._name_chars = self._rows, [], 0
        return rows
