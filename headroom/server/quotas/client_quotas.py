"""kafka_client_* of /metrics (proposed in KIP-786), computed at each scrape: limit, usage, utilisation, throttling.

The number of series is limited: clients nearest to their limit come first, those without a limit last, so that the
series omitted at the limit are those of clients furthest from theirs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from exporters import self_metrics as catalogue
from exporters.model import UsageSample
from exporters.self_metrics import SelfMetric, Values
from headroom.clock import now_ms
from quota_metrics.jmx.sensors import BEANS
from quota_metrics.measure.muted_time import MutedMinute
from quota_metrics.measure.quota_manager import QuotaManager
from quota_metrics.measure.utilization import ClientUtilization, utilizations, worst_by_client
from quota_metrics.windows import QuotaWindow

_SERIES = (
    catalogue.CLIENT_LIMIT,
    catalogue.CLIENT_USAGE,
    catalogue.CLIENT_UTILIZATION,
    catalogue.CLIENT_THROTTLE,
    catalogue.CLIENT_CAPACITY,
)
_MAX_NAME_CHARS = 255
_HALF_MS = 30_000  # throttling is shown for 30 to 60 s: scrapes are rarer than rows
_MAX_THROTTLED = 50_000

_QUOTA_TYPE = {quota_key: bean for bean, (quota_key, _rate) in BEANS.items()}  # as in the broker's metrics

_Muted: TypeAlias = tuple[str, str, str, int]  # quota key, user, client-id, broker
_Labels: TypeAlias = tuple[str, str, str, str]  # cluster, quota type, user, client-id


class ClientQuotas:
    """Holds the latest rows; `readings` turns them into series."""

    def __init__(
        self,
        cluster: str,
        manager_at: Callable[[int], QuotaManager],
        window_at: Callable[[int], QuotaWindow],
        thread_capacity: Mapping[int, float],
        max_series: int,
        now_ms: Callable[[], int] = now_ms,
    ) -> None:
        self.series_left_out = 0
        self._cluster = cluster
        self._manager_at = manager_at
        self._window_at = window_at
        self._thread_capacity = thread_capacity
        self._max_series = max_series
        self._gateway: Sequence[UsageSample] = ()
        self._jmx: dict[int, Sequence[UsageSample]] = {}
        self._throttled: tuple[dict[_Labels, float], dict[_Labels, float]] = ({}, {})
        self._half_began_ms = 0
        self._now_ms = now_ms
        self._muted: dict[_Muted, MutedMinute] = {}

    def measured(self, rows: Sequence[UsageSample]) -> None:
        """Takes the gateway's latest rows."""
        self._gateway = rows
        if rows and rows[0].ts_ms - self._half_began_ms >= _HALF_MS:
            self._throttled = ({}, self._throttled[0])
            self._half_began_ms = rows[0].ts_ms
        for row in rows:
            if row.throttle_ms > 0 or row.muted_ms > 0:
                self._note_throttled(row)
            if row.muted_ms > 0:
                self._note_muted(row)

    def scraped(self, broker_id: int, rows: Sequence[UsageSample]) -> None:
        """Takes a broker's own rows; empty when it could not be read."""
        self._jmx[broker_id] = rows

    def readings(self) -> dict[SelfMetric, Values]:
        self._forget_unmuted()
        rows = [*self._gateway, *(row for rows in self._jmx.values() for row in rows)]
        groups = utilizations(rows, self._manager_at, self._window_at, self._thread_capacity)
        clients = worst_by_client(groups, self._muted_ms)
        clients.sort(key=lambda one: (one.order[:3], one.rate, one.user, one.client_id), reverse=True)
        series: dict[SelfMetric, dict[tuple[str, ...], float]] = {metric: {} for metric in _SERIES}
        room = self._max_series
        for client in clients:
            labels = self._labels(client.worst.quota_key, client.user, client.client_id)
            values = self._values(client, labels)
            if len(values) > room or max(map(len, labels)) > _MAX_NAME_CHARS:
                self.series_left_out += len(values)
                continue
            room -= len(values)
            for metric, value in values.items():
                series[metric][labels] = value
        return {**series, catalogue.SERIES_LEFT_OUT: self.series_left_out}

    def _note_throttled(self, row: UsageSample) -> None:
        """A row without a throttle time of its own mutes by the one that was announced before."""
        labels = self._labels(row.quota_key, row.user, row.client_id)
        now, before = self._throttled
        throttle_ms = row.throttle_ms or before.get(labels, 0.0)
        if labels in now or len(now) < _MAX_THROTTLED:
            now[labels] = max(throttle_ms, now.get(labels, 0.0))

    def _note_muted(self, row: UsageSample) -> None:
        key = _muted_key(row)
        if key in self._muted or len(self._muted) < _MAX_THROTTLED:
            self._muted.setdefault(key, MutedMinute()).add(row.ts_ms, row.muted_ms)

    def _muted_ms(self, quota_key: str, user: str, client_id: str, broker_id: int) -> float:
        """How long the client was muted in the last minute (DECISIONS 19)."""
        found = self._muted.get((quota_key, user, client_id, broker_id))
        return 0.0 if found is None else found.muted_ms(self._now_ms())

    def _forget_unmuted(self) -> None:
        now_ms = self._now_ms()
        self._muted = {key: muted for key, muted in self._muted.items() if muted.muted_ms(now_ms) > 0}

    def _labels(self, quota_key: str, user: str, client_id: str) -> _Labels:
        return self._cluster, _QUOTA_TYPE[quota_key], user, client_id

    def _values(self, client: ClientUtilization, labels: _Labels) -> dict[SelfMetric, float]:
        group = client.worst
        throttle_ms = max(client.throttle_ms, *(half.get(labels, 0.0) for half in self._throttled))
        values = {catalogue.CLIENT_THROTTLE: throttle_ms / 1000}
        if not math.isnan(group.limit):
            values[catalogue.CLIENT_LIMIT] = group.limit
        if not (math.isnan(group.rate) or math.isnan(group.limit)):
            values[catalogue.CLIENT_UTILIZATION] = group.ratio
        if not math.isnan(client.rate):
            values[catalogue.CLIENT_USAGE] = client.rate
        if not math.isnan(group.capacity_ratio):
            values[catalogue.CLIENT_CAPACITY] = group.capacity_ratio
        return values


def _muted_key(row: UsageSample) -> _Muted:
    return row.quota_key, row.user, row.client_id, row.broker_id
