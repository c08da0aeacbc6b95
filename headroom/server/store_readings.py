"""Metrics about the store's contents, which are not queried at each scrape; and the spool's limit.

headroom_client_quota_level, headroom_client_impact and kafka_client_* (proposed in KIP-786) are of each client in the
last 60 seconds, read from headroom_now when the levels process has computed them (levels_process.py): the sum over all
gateways, on the worst broker, of the same window that the pages and `headroom top` show. Alert rules use the level and
compute none of their own.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from exporters import self_metrics as catalogue
from exporters.clickhouse.client import ClickHouse, Row
from exporters.self_metrics import SelfMetric, Values
from headroom.clock import now_ms
from headroom.daemon_thread import in_daemon_thread
from headroom.server.periodic import PeriodicTask
from quota_metrics.jmx.sensors import BEANS
from quota_metrics.verdict.impact import number_of_impact

_EVERY_MS = 60_000
_LEVELS_MS = 1_000
_KNOWN_ISSUES: Final = "SELECT sum(instances) AS instances FROM client_software WHERE known_issue != ''"
_JOBS: Final = """
SELECT job, toUnixTimestamp(max(r.finished_at)) AS finished_s
FROM job_runs AS r FINAL
WHERE status = 'succeeded' AND isNotNull(finished_at)
GROUP BY job ORDER BY job LIMIT 50
"""

_STALE_S = 180  # older windows are not exposed
_SERIES_OF_A_CLIENT = 9
_MAX_NAME_CHARS = 255
_QUOTA_TYPE = {quota_key: bean for bean, (quota_key, _rate) in BEANS.items()}  # as in the broker's metrics

# Utilisation and limit as text, because JSON has no infinity: a limit of 0 is exceeded by any usage. A row without a
# throttle time of its own mutes by the one that was announced before. A bucket that both sources measured counts once.
_CLIENTS: Final = """
SELECT cluster, quota_key, user, client_id, source, team, toString(h.utilization) AS mean,
       toString(h.utilization_p95) AS p95, muted_ms / (1000 * window_s) AS muted, toFloat64(level) AS level,
       impact, usage, if(throttle_ms > 0, throttle_ms, toFloat64(muted_ms)) / 1000 AS throttle_s,
       if(limit_known, toString(ifNull(h.limit, inf)), NULL) AS bound, count() OVER () AS clients
FROM headroom_now AS h
WHERE window_start = fromUnixTimestamp({window_s:UInt32})
  AND (source = {source:String} OR (cluster, quota_key, bucket_user, bucket_client_id) NOT IN (
      SELECT n.cluster, n.quota_key, n.bucket_user, n.bucket_client_id FROM headroom_now AS n
      WHERE n.window_start = fromUnixTimestamp({window_s:UInt32}) AND n.source = {source:String}))
ORDER BY h.level DESC, greatest(h.utilization, h.utilization_p95) DESC NULLS LAST, cluster, quota_key, user, client_id
LIMIT {clients:UInt32}
"""


class StoreReadings:
    """The latest results; empty before the first query."""

    def __init__(
        self,
        store: ClickHouse,
        spool_max_bytes: int,
        *,
        source: str = "gateway",
        max_client_series: int = 0,
        newest_s: Callable[[], int] = lambda: 0,
        now_ms: Callable[[], int] = now_ms,
    ) -> None:
        """`source`: who measured the usage that is shown; a bucket that it does not see is shown by the other source.
        `max_client_series`: budget of kafka_client_*, of which a client has nine, the worst first; 0 switches them off.
        `newest_s`: start of the newest 60 seconds whose levels can be read."""
        self._store = store
        self._source = source
        self._clients = max_client_series // _SERIES_OF_A_CLIENT
        self._newest_s = newest_s
        self._now_ms = now_ms
        self._values: dict[SelfMetric, Values] = {catalogue.SPOOL_MAX_BYTES: spool_max_bytes}
        self._levels: dict[SelfMetric, Values] = {}
        self._window_s = 0  # start of what was read last
        self._left_out = 0  # series, since the start

    def tasks(self) -> list[PeriodicTask]:
        """The readings, first one interval after the start; and those of newer levels."""
        levels = [PeriodicTask("metrics of levels", _LEVELS_MS, self.read_levels)] if self._clients else []
        return [PeriodicTask("store readings", _EVERY_MS, self.read), *levels]

    async def read_levels(self) -> None:
        """Reads levels that are newer than those before. Raises ConnectionError."""
        window_s = self._newest_s()
        if window_s <= self._window_s:
            return
        parameters = {"window_s": window_s, "source": self._source, "clients": self._clients}
        rows = await in_daemon_thread(partial(self._store.rows, _CLIENTS, parameters))
        short_named = [
            row for row in rows if max(len(row[name]) for name in ("cluster", "user", "client_id")) <= _MAX_NAME_CHARS
        ]
        self._left_out += _SERIES_OF_A_CLIENT * ((rows[0]["clients"] if rows else 0) - len(short_named))
        self._levels = {catalogue.WINDOW_START: float(window_s), **_series(short_named)}
        self._window_s = window_s

    async def read(self) -> None:
        """Raises ConnectionError when the store is unreachable; the previous results remain."""
        (issues,), jobs = await in_daemon_thread(lambda: (self._store.rows(_KNOWN_ISSUES), self._store.rows(_JOBS)))
        self._values |= {
            catalogue.KNOWN_ISSUES: float(issues["instances"]),
            catalogue.JOB_SUCCESS: {row["job"]: float(row["finished_s"]) for row in jobs},
        }

    def readings(self) -> dict[SelfMetric, Values]:
        """For the registry. Without levels when the store could not be read for minutes."""
        if not self._clients:
            return self._values
        is_stale = self._now_ms() // 1000 - self._window_s > _STALE_S
        return self._values | {catalogue.SERIES_LEFT_OUT: self._left_out, **({} if is_stale else self._levels)}


def _series(rows: Iterable[Row]) -> dict[SelfMetric, Values]:
    series: defaultdict[SelfMetric, dict[tuple[str, ...], float]] = defaultdict(dict)
    for row in rows:
        quota_key = str(row["quota_key"])
        labels: tuple[str, ...] = (
            row["cluster"],
            _QUOTA_TYPE.get(quota_key, quota_key),
            row["user"],
            row["client_id"],
            row["source"],
        )
        for statistic in ("mean", "p95"):
            if row[statistic] is not None:
                series[catalogue.WINDOW_UTILIZATION][*labels, statistic] = float(row[statistic])
        if row["mean"] is not None:
            series[catalogue.CLIENT_UTILIZATION][labels] = float(row["mean"])
        if row["bound"] is not None:
            series[catalogue.CLIENT_LIMIT][labels] = float(row["bound"])
        series[catalogue.CLIENT_USAGE][labels] = row["usage"]
        series[catalogue.CLIENT_THROTTLE][labels] = row["throttle_s"]
        series[catalogue.WINDOW_MUTED][labels] = row["muted"]
        series[catalogue.CLIENT_LEVEL][*labels, row["team"]] = row["level"]
        series[catalogue.CLIENT_IMPACT][labels] = number_of_impact(row["impact"])
    return dict(series)
