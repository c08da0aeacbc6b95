"""Clients that are slow because of another one, of a job's staged rows on a real server."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from quota_metrics.levels.victims import COLUMNS, victims
from tests.kit.clickhouse import RunningClickHouse

pytestmark = pytest.mark.clickhouse

WINDOWS, START_S = 10, 1_800_000_000
_NAMES = (
    "run, cluster, source, user, client_id, quota_key, broker_id, window_start, window_s, complete, usage, throttled_s,"
    " client_throttle_ms_max, request_latency_ms_max"
)


class Client(NamedTuple):
    """`rates`, `latencies`: of the first seven windows and of the last three, in which the heavy client runs."""

    client_id: str
    rates: tuple[float, float] = (100.0, 100.0)
    latencies: tuple[float | None, float | None] = (20.0, 900.0)
    throttled_s: float = 0.0
    felt_ms: float | None = None
    broker_id: int = 1
    since: int = 0  # its first window

    def rows(self) -> list[str]:
        found = []
        for window in range(self.since, WINDOWS):
            late = int(window >= 7)
            latency, felt = self.latencies[late], self.felt_ms if late else None
            numbers = [
                self.rates[late],
                self.throttled_s * late,
                *("NULL" if n is None else n for n in (felt, latency)),
            ]
            key = f"'victims', 'c', 'gateway', 'u', '{self.client_id}', 'producer_byte_rate', {self.broker_id}"
            found.append(f"({key}, toDateTime({START_S + window * 60}), 60, 1, {', '.join(map(str, numbers))})")
        return found


HEAVY = Client("heavy", rates=(50.0, 5000.0), latencies=(10.0, 800.0))


def test_a_victim_is_slow_while_a_heavy_client_runs(clickhouse: RunningClickHouse) -> None:
    clients = [
        HEAVY,
        Client("victim"),
        Client("muted", throttled_s=3.0),
        Client("throttled by its own word", felt_ms=900.0),
        Client("as fast as before", latencies=(20.0, 30.0)),
        Client("always slow", latencies=(900.0, 950.0)),
        Client("silent", latencies=(None, None)),
        Client("silent now", latencies=(20.0, None)),
        Client("new", since=5),
        Client("at another broker", broker_id=2, rates=(10.0, 10.0)),
        Client("steady at the other broker", broker_id=2, rates=(900.0, 900.0), latencies=(20.0, 20.0)),
        Client("small beside many", broker_id=3, rates=(10.0, 10.0)),
        *(Client(f"one of many {n}", broker_id=3, rates=(10.0, 40.0), latencies=(20.0, 20.0)) for n in range(3)),
    ]
    rows = ", ".join(row for client in clients for row in client.rows())
    clickhouse.store.query(f"INSERT INTO headroom.quota_utilization_staging ({_NAMES}) VALUES {rows}")
    query = victims("headroom.quota_utilization_staging WHERE run = 'victims'")
    found = clickhouse.store.query(f"SELECT client_id, {', '.join(COLUMNS)} FROM ({query})")
    assert found == [("victim", "u", "heavy", 1, 900.0, 20.0)]
