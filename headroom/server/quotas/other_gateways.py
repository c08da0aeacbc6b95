"""What other gateways before the same cluster measured of a client, read from the store that they share.

A throttle time does not say which quota caused it, and one gateway sees only its part of a client's rate: with the
parts of the others the meter names the quota that the broker applied.
"""

from dataclasses import replace
from functools import partial

import structlog

from exporters.clickhouse.client import ClickHouse
from headroom.clock import monotonic_ms
from headroom.daemon_thread import in_daemon_thread
from headroom.server.periodic import PeriodicTask
from quota_metrics.measure.usage_meter import Bucket, UsageMeter

log = structlog.get_logger(__name__)

_STEP_MS = 1_000
_LOOK_EVERY_MS = 60_000  # for other gateways
_LOOK_WAITING_MS = 5_000  # while a throttle time is below the limit that this gateway sees
_TIMEOUT_S = 10.0

_OTHERS = """
SELECT DISTINCT gateway_id FROM quota_usage_recent
WHERE minute >= now() - INTERVAL 5 MINUTE AND cluster = {cluster:String} AND source = 'gateway'
  AND gateway_id != {own:String}
LIMIT 100
"""
# The newest rate of each client at each gateway; rows of a second are stored one to three seconds after it.
_RATES = """
SELECT quota_key, bucket_user, bucket_client_id, broker_id, sum(newest) AS rate
FROM
(
    SELECT quota_key, bucket_user, bucket_client_id, broker_id, gateway_id, user, client_id,
           argMax(r.rate, ts) AS newest
    FROM quota_usage_recent AS r
    WHERE minute >= now() - INTERVAL 2 MINUTE AND ts > now() - INTERVAL 15 SECOND AND cluster = {cluster:String}
      AND source = 'gateway' AND gateway_id != {own:String}
      AND (quota_key, bucket_user, bucket_client_id, toString(broker_id)) IN
          (SELECT arrayJoin(arrayZip({keys:Array(String)}, {users:Array(String)}, {clients:Array(String)},
                                     {brokers:Array(String)})))
    GROUP BY quota_key, bucket_user, bucket_client_id, broker_id, gateway_id, user, client_id
)
GROUP BY quota_key, bucket_user, bucket_client_id, broker_id
"""


class OtherGateways:
    """Tells the meter which gateways there are, and their rates of the buckets that it cannot decide alone."""

    def __init__(self, meter: UsageMeter, store: ClickHouse, own: str) -> None:
        """`own`: this gateway's id."""
        self.names: frozenset[str] = frozenset()
        self._meter = meter
        self._store = replace(store, timeout_s=_TIMEOUT_S)
        self._where = {"cluster": meter.cluster, "own": own}
        self._looked_ms: int | None = None

    def task(self) -> PeriodicTask:
        return PeriodicTask("other gateways", _STEP_MS, self.step)

    async def step(self) -> None:
        """Reads the store while a throttle time waits for it, else once a minute. Raises ConnectionError."""
        buckets = self._meter.take_undecided()
        # Others may have come or gone since the last look.
        every_ms = _LOOK_WAITING_MS if buckets else _LOOK_EVERY_MS
        if self._looked_ms is None or monotonic_ms() - self._looked_ms >= every_ms:
            rows = await in_daemon_thread(partial(self._store.rows, _OTHERS, self._where))
            names = frozenset(str(row["gateway_id"]) for row in rows)
            self._looked_ms = monotonic_ms()
            if names != self.names:
                log.info("other gateways before this cluster", gateways=sorted(names))
            self.names = names
        elif not (buckets and self.names):
            return
        if self.names:
            self._meter.others_have(await in_daemon_thread(partial(self._rates, buckets)) if buckets else {})
        else:
            self._meter.is_alone()

    def _rates(self, buckets: list[Bucket]) -> dict[Bucket, float]:
        """Bytes per second of all other gateways together; 0.0 where they have none."""
        keys, users, clients, brokers = (list(column) for column in zip(*buckets, strict=True))
        asked = {"keys": keys, "users": users, "clients": clients, "brokers": list(map(str, brokers))}
        rows = self._store.rows(_RATES, {**self._where, **asked})
        rates = {
            (row["quota_key"], row["bucket_user"], row["bucket_client_id"], row["broker_id"]): float(row["rate"])
            for row in rows
        }
        return {bucket: rates.get(bucket, 0.0) for bucket in buckets}
