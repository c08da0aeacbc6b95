"""Metrics about the store's contents, queried once a minute and not at each scrape; and the spool's limit.

Runs the computation of each minute's levels (minute_levels.py), too, which the metrics of levels follow.
"""

from __future__ import annotations

from typing import Final

from exporters import self_metrics as catalogue
from exporters.clickhouse.client import ClickHouse, Row
from exporters.self_metrics import SelfMetric, Values
from headroom.daemon_thread import in_daemon_thread
from headroom.owners import OwnersInForce
from headroom.server.minute_levels import MinuteLevels
from headroom.server.periodic import PeriodicTask
from headroom.server.window_levels import WindowLevels
from quota_metrics.levels.definition import Thresholds

_EVERY_MS = 60_000
_KNOWN_ISSUES: Final = "SELECT sum(instances) AS instances FROM client_software WHERE known_issue != ''"
_JOBS: Final = """
SELECT job, toUnixTimestamp(max(r.finished_at)) AS finished_s
FROM job_runs AS r FINAL
WHERE status = 'succeeded' AND isNotNull(finished_at)
GROUP BY job ORDER BY job LIMIT 50
"""


class StoreReadings:
    """The latest results; empty before the first query."""

    def __init__(
        self,
        store: ClickHouse,
        spool_max_bytes: int,
        *,
        max_client_series: int = 0,
        thresholds: Thresholds = Thresholds(),
        owners: OwnersInForce | None = None,
    ) -> None:
        """`max_client_series`: budget of kafka_client_quota_window_*; 0 switches them off."""
        self._store = store
        self._levels = WindowLevels(store, max_client_series)
        self._minutes = MinuteLevels(store, self._levels.read, thresholds, owners=owners)
        self._values: dict[SelfMetric, Values] = {catalogue.SPOOL_MAX_BYTES: spool_max_bytes}

    def tasks(self) -> list[PeriodicTask]:
        """The readings, first one interval after the start; and the levels of each minute."""
        return [PeriodicTask("store readings", _EVERY_MS, self.read), self._minutes.task()]

    def follow(self, thresholds: Thresholds) -> None:
        """Takes over changed thresholds of levels."""
        self._minutes.follow(thresholds)

    async def read(self) -> None:
        """Raises ConnectionError when the store is unreachable; the previous results remain."""
        (known,), jobs = await in_daemon_thread(self._asked)
        self._values |= {
            catalogue.KNOWN_ISSUES: float(known["instances"]),
            catalogue.JOB_SUCCESS: {row["job"]: float(row["finished_s"]) for row in jobs},
        }

    def _asked(self) -> tuple[list[Row], list[Row]]:
        return self._store.rows(_KNOWN_ISSUES), self._store.rows(_JOBS)

    def readings(self) -> dict[SelfMetric, Values]:
        """For the registry."""
        return self._values | self._levels.readings()
