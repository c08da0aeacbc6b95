"""kafka_client_quota_window_* of /metrics: what decides the level of each client in the newest minute that has ended.

Read from headroom.headroom_by_minute once for each minute: the sum over all gateways, on the worst broker, of the same
window that the pages and `headroom top` show. The recording rule kafka_client:quota_level (deploy/prometheus) computes
the level from them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final

from clickhouse_connect.driver.exceptions import ClickHouseError

from exporters import self_metrics as catalogue
from exporters.clickhouse.connection import Endpoint
from exporters.self_metrics import SelfMetric, Values
from headroom.clock import now_ms
from headroom.server.periodic import PeriodicTask
from quota_metrics.jmx.sensors import BEANS

_EVERY_MS = 2_000  # looks whether a minute has ended; the store is read once for each
_WINDOW_S = 60
_COMPLETE_AFTER_S = 4  # as in headroom_now: by then the rows of a minute are stored
_STALE_S = 180  # older windows are not exposed
_TIMEOUT_S = 30
_SERIES_OF_A_CLIENT = 4
_MAX_NAME_CHARS = 255
_QUOTA_TYPE = {quota_key: bean for bean, (quota_key, _rate) in BEANS.items()}  # as in the broker's metrics

_CLIENTS: Final = """
SELECT cluster, quota_key, user, client_id, source, utilization, utilization_p95,
       muted_ms / (1000 * window_s) AS muted, toFloat64(limit_known) AS known
FROM headroom.headroom_by_minute
WHERE window_start = fromUnixTimestamp({window_s:UInt32})
ORDER BY level DESC, greatest(utilization, utilization_p95) DESC NULLS LAST, cluster, quota_key, user, client_id
LIMIT {clients:UInt32}
"""


class WindowLevels:
    """The series of at most `max_series` / 4 clients, the worst first; none before the first window."""

    def __init__(self, store: Endpoint, max_series: int, now_ms: Callable[[], int] = now_ms) -> None:
        self._store = store
        self._clients = max_series // _SERIES_OF_A_CLIENT
        self._now_ms = now_ms
        self._window_s = 0
        self._values: dict[SelfMetric, Values] = {}

    def task(self) -> PeriodicTask:
        """Reads each minute soon after its end."""
        return PeriodicTask("levels of the last minute", _EVERY_MS, self.read, on_the_clock=True)

    async def read(self) -> None:
        """Reads the newest ended minute unless it was read before. Raises ConnectionError."""
        window_s = (self._now_ms() // 1000 - _WINDOW_S - _COMPLETE_AFTER_S) // _WINDOW_S * _WINDOW_S
        if window_s == self._window_s:
            return
        rows = await asyncio.to_thread(self._ask, window_s)
        self._values = {catalogue.WINDOW_START: float(window_s), **_series(rows)}
        self._window_s = window_s

    def readings(self) -> dict[SelfMetric, Values]:
        """For the registry. Empty when the store could not be read for minutes."""
        is_stale = self._now_ms() // 1000 - self._window_s > _STALE_S
        return {} if is_stale else self._values

    def _ask(self, window_s: int) -> list[Any]:
        try:
            client = self._store.connect(connect_timeout=_TIMEOUT_S, send_receive_timeout=_TIMEOUT_S)
            try:
                found = client.query(_CLIENTS, parameters={"window_s": window_s, "clients": self._clients})
                return list(found.result_rows)
            finally:
                client.close()
        except (ClickHouseError, OSError, ValueError) as exc:
            raise ConnectionError(" ".join(str(exc).split())) from exc


def _series(rows: Iterable[Any]) -> dict[SelfMetric, Values]:
    utilization: dict[tuple[str, ...], float] = {}
    muted: dict[tuple[str, ...], float] = {}
    known: dict[tuple[str, ...], float] = {}
    for cluster, quota_key, user, client_id, source, mean, p95, muted_share, limit_known in rows:
        labels = (cluster, _QUOTA_TYPE.get(quota_key, quota_key), user, client_id, source)
        if max(map(len, labels)) > _MAX_NAME_CHARS:
            continue
        for statistic, value in (("mean", mean), ("p95", p95)):
            if value is not None:
                utilization[*labels, statistic] = value
        muted[labels], known[labels] = muted_share, limit_known
    return {
        catalogue.WINDOW_UTILIZATION: utilization,
        catalogue.WINDOW_MUTED: muted,
        catalogue.WINDOW_LIMIT_KNOWN: known,
    }
