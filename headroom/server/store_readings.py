"""Metrics about the store's contents, queried once a minute and not at each scrape; and the spool's limit.

Runs the computation of each minute's levels (minute_levels.py), too, which the metrics of levels follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from clickhouse_connect.driver.exceptions import ClickHouseError

from exporters import self_metrics as catalogue
from exporters.clickhouse.connection import Endpoint
from exporters.clickhouse.reader import Nodes, UnreachableError
from exporters.self_metrics import SelfMetric, Values
from headroom.daemon_thread import in_daemon_thread
from headroom.server.minute_levels import MinuteLevels
from headroom.server.periodic import PeriodicTask
from headroom.server.window_levels import WindowLevels

_EVERY_MS = 60_000
_TIMEOUT_S = 30
_KNOWN_ISSUES: Final = "SELECT sum(instances) FROM headroom.client_software WHERE known_issue != ''"
_JOBS: Final = """
SELECT job, toFloat64(toUnixTimestamp(max(finished_at)))
FROM headroom.job_runs FINAL
WHERE status = 'succeeded' AND isNotNull(finished_at)
GROUP BY job ORDER BY job LIMIT 50
"""


class StoreReadings:
    """The latest results; empty before the first query."""

    def __init__(
        self,
        store: Nodes,
        spool_max_bytes: int,
        *,
        settings: Mapping[str, str] | None = None,
        max_client_series: int = 0,
    ) -> None:
        """`settings`: of statements that write. `max_client_series`: budget of kafka_client_quota_window_*; 0 switches
        them off."""
        self._store = store
        self._levels = WindowLevels(store, max_client_series)
        self._minutes = MinuteLevels(store, settings or {}, self._levels.read)
        self._values: dict[SelfMetric, Values] = {catalogue.SPOOL_MAX_BYTES: spool_max_bytes}

    def tasks(self) -> list[PeriodicTask]:
        """The readings, first one interval after the start; and the levels of each minute."""
        return [PeriodicTask("store readings", _EVERY_MS, self.read), self._minutes.task()]

    async def read(self) -> None:
        """Raises ConnectionError when the store is unreachable; the previous results remain."""
        known_issues, jobs = await in_daemon_thread(partial(self._store.ask, _asked))
        self._values |= {
            catalogue.KNOWN_ISSUES: float(known_issues[0][0]),
            catalogue.JOB_SUCCESS: {str(job): float(finished_s) for job, finished_s in jobs},
        }

    def readings(self) -> dict[SelfMetric, Values]:
        """For the registry."""
        return self._values | self._levels.readings()


def _asked(node: Endpoint) -> tuple[list[Any], list[Any]]:
    try:
        client = node.connect(connect_timeout=_TIMEOUT_S, send_receive_timeout=_TIMEOUT_S)
        try:
            known_issues, jobs = client.query(_KNOWN_ISSUES), client.query(_JOBS)
            return list(known_issues.result_rows), list(jobs.result_rows)
        finally:
            client.close()
    except (ClickHouseError, OSError, ValueError) as exc:
        raise UnreachableError(" ".join(str(exc).split())) from exc
