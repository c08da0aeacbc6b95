"""Evidence for the report: the broker's byte rates beside Headroom's, and the contents of ClickHouse. No I/O except in
`stored`."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from exporters.clickhouse.client import ClickHouse
from exporters.clickhouse.connection import Endpoint
from exporters.clickhouse.errors import StoreError
from exporters.model import QuotaKey
from headroom.demo.kit.errors import DemoError
from headroom.demo.kit.jmx import Sensor
from headroom.demo.script import CLIENTS, FAMILIES, Client

TOLERANCE = 0.05  # Headroom's usage compared with the broker's byte-rate over the same minute

Row = dict[str, Any]

# Queries on the run's data, by name in evidence.json.
_QUERIES = {
    "points": """
        SELECT client_id, software_name, software_version, source_address, count() AS points,
               uniqExact(metric) AS metrics
        FROM client_metrics WHERE cluster = {cluster:String}
        GROUP BY client_id, software_name, software_version, source_address ORDER BY client_id""",
    "pushes": """
        SELECT client_id, count() AS pushes, countIf(terminating) AS terminating,
               countIf(received_at BETWEEN fromUnixTimestamp64Milli({from_ms:Int64})
                                       AND fromUnixTimestamp64Milli({to_ms:Int64})) AS in_the_window
        FROM pushes WHERE cluster = {cluster:String} GROUP BY client_id ORDER BY client_id""",
    "usage": """
        SELECT client_id, quota_key, sum(bytes) * 1000 / ({to_ms:Int64} - {from_ms:Int64}) AS bytes_per_s,
               avg(rate) AS mean_rate, count() AS samples
        FROM quota_usage FINAL
        WHERE cluster = {cluster:String} AND source = 'gateway'
          AND ts > fromUnixTimestamp64Milli({from_ms:Int64}) AND ts <= fromUnixTimestamp64Milli({to_ms:Int64})
        GROUP BY client_id, quota_key ORDER BY client_id, quota_key""",
    "throttle_samples": """
        SELECT client_id, quota_key, user, broker_id, countIf(throttle_ms > 0) AS samples,
               sum(throttled_requests) AS responses, max(throttle_ms) AS longest_ms
        FROM quota_usage FINAL
        WHERE cluster = {cluster:String} AND source = 'gateway'
          AND ts > fromUnixTimestamp64Milli({from_ms:Int64}) AND ts <= fromUnixTimestamp64Milli({to_ms:Int64})
        GROUP BY client_id, quota_key, user, broker_id HAVING samples > 0 ORDER BY client_id""",
}


class ByteRates:
    """The broker's byte rates, sampled during a window."""

    def __init__(self) -> None:
        self._samples: dict[tuple[QuotaKey, str], list[float]] = defaultdict(list)

    def add(self, sensors: Mapping[tuple[QuotaKey, str], Sensor]) -> None:
        for key, sensor in sensors.items():
            if math.isfinite(sensor.byte_rate):
                self._samples[key].append(sensor.byte_rate)

    def mean(self, client: Client) -> float | None:
        """None when the broker showed no such sensor."""
        samples = self._samples[client.quota_key, client.client_id]
        return sum(samples) / len(samples) if samples else None

    def compare(self, report: Sequence[Row]) -> list[Row]:
        """Headroom's usage and the broker's mean byte-rate of each client at `warn` or `throttled`."""
        rows = _by_client(report)
        compared = []
        for client in CLIENTS:
            row, broker = rows.get((client.quota_key, client.client_id)), self.mean(client)
            if client.habit not in ("warn", "throttled") or row is None or not broker:
                continue
            names = {"client_id": client.client_id, "quota_key": str(client.quota_key)}
            difference = (row["usage"] - broker) / broker
            compared.append({**names, "usage": row["usage"], "jmx_byte_rate": broker, "difference": difference})
        return compared


def stored(sql: str, cluster: str, from_ms: int, to_ms: int) -> dict[str, list[Row]]:
    """Results of the queries at the SQL endpoint HOST:PORT. Raises DemoError."""
    parameters = {"cluster": cluster, "from_ms": from_ms, "to_ms": to_ms}
    clickhouse = ClickHouse((Endpoint.parse(f"http://{sql}"),))
    try:
        return {name: clickhouse.rows(query, parameters) for name, query in _QUERIES.items()}
    except StoreError as exc:
        raise DemoError(f"cannot read what was stored: {exc}") from exc
    finally:
        clickhouse.close()


def faults(report: Sequence[Row], compared: Sequence[Row], found: Mapping[str, Sequence[Row]]) -> list[str]:
    """Deviations from the script; empty when there are none."""
    return [*_wrong_levels(report), *_wrong_rates(compared), *_missing(found)]


def _wrong_levels(report: Sequence[Row]) -> Iterable[str]:
    rows = _by_client(report)
    for client in CLIENTS:
        row = rows.get((client.quota_key, client.client_id))
        if row is None:
            yield f"{client.client_id} is missing"
        elif row["level"] != client.script.level:
            yield f"{client.client_id} is {row['level']}, not {client.script.level} ({row['reason']})"
        elif row["limit"] != client.limit:
            yield f"{client.client_id} has the limit {row['limit']}, not {client.limit}"


def _wrong_rates(compared: Sequence[Row]) -> Iterable[str]:
    seen = {row["client_id"] for row in compared}
    for client in CLIENTS:
        if client.habit in ("warn", "throttled") and client.client_id not in seen:
            yield f"{client.client_id} has no byte-rate at the broker or in the report"
    for row in compared:
        if abs(row["difference"]) > TOLERANCE:
            yield f"{row['client_id']} is {row['difference']:+.1%} off the broker's own byte-rate"


def _missing(found: Mapping[str, Sequence[Row]]) -> Iterable[str]:
    pushed = {row["client_id"] for row in found["points"]}
    throttled = {row["client_id"] for row in found["throttle_samples"]}
    for family in FAMILIES:
        if not any(client.client_id in pushed for client in CLIENTS if client.family == family):
            yield f"no telemetry of the {family} clients arrived"
    for client in CLIENTS:
        if client.habit == "throttled" and client.client_id not in throttled:
            yield f"no throttling of {client.client_id} was seen on the wire"


def _by_client(report: Sequence[Row]) -> dict[tuple[str, str], Row]:
    return {(row["quota_key"], row["client_id"]): row for row in report}
