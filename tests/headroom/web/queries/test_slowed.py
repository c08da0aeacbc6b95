"""Who makes a client slow, as its page reads it from the minutes of a real server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest

from exporters.clickhouse.client import ClickHouse, Row
from exporters.clickhouse.connection import Endpoint
from exporters.clickhouse.managed.access import PAGES, pages_password
from headroom.web.data import Data
from tests.kit.clickhouse import RunningClickHouse, running_clickhouse

pytestmark = pytest.mark.clickhouse

NEWEST_S = int(time.time()) // 60 * 60 - 60
LATENCY = "org.apache.kafka.producer.node.request.latency.max"
THROTTLED = "org.apache.kafka.producer.produce.throttle.time.max"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningClickHouse]:
    """In ten minutes `heavy` runs in the last three; at another broker `always busy` runs for an hour."""
    with running_clickhouse(tmp_path_factory.mktemp("slowed")) as running:
        for client_id, during in (("heavy", 5000.0), ("victim", 100.0), ("fast", 100.0), ("throttled", 100.0)):
            used(running, client_id, 1, [during] * 3 + [100.0] * 7)
        used(running, "at another broker", 2, [10.0] * 10)
        used(running, "always busy", 3, [5000.0] * 60)
        used(running, "beside it", 3, [1.0] * 60)
        slow = {-60 * ago + 30: 900.0 if ago < 3 else 20.0 for ago in range(10)}
        for client_id in ("heavy", "victim", "throttled", "at another broker"):
            reported(running, client_id, LATENCY, slow)
        reported(running, "fast", LATENCY, {at: min(value, 30.0) for at, value in slow.items()})
        reported(running, "throttled", THROTTLED, {30: 50.0})
        # Fast requests only in minutes of which no usage is read: before the hour, and after the newest.
        reported(running, "beside it", LATENCY, {-3600: 20.0, -3541: 20.0, 65: 20.0, 130: 20.0, 30: 900.0})
        yield running


def used(server: RunningClickHouse, client_id: str, broker_id: int, rates: Sequence[float]) -> None:
    """In the newest minute and those before; an earlier computation of each said 0."""
    server.store.query(
        """INSERT INTO headroom.headroom_minutes (window_start, computed_at, is_worst, cluster, source, quota_key, user,
               client_id, broker_id, usage, level, instant_level, window_s)
           SELECT fromUnixTimestamp({newest_s:Int64} - 60 * (number - 1)), toDateTime64({newest_s:Int64} + computed, 3),
               1, 'busy', 'gateway', 'producer_byte_rate', 'u', {client_id:String}, {broker_id:Int32}, computed * rate,
               'ok', 'ok', 60
           FROM (SELECT number, rate, arrayJoin([0, 1]) AS computed FROM (SELECT {rates:Array(Float64)} AS every)
                 ARRAY JOIN every AS rate, arrayEnumerate(every) AS number)""",
        {"newest_s": NEWEST_S, "client_id": client_id, "broker_id": broker_id, "rates": list(rates)},
    )


def reported(server: RunningClickHouse, client_id: str, metric: str, values: dict[int, float]) -> None:
    """By seconds after the begin of the newest minute."""
    server.store.query(
        """INSERT INTO headroom.points (cluster, metric, ts, principal, client_id, value)
           SELECT 'busy', {metric:String}, toDateTime64({newest_s:Int64} + at, 3), 'u', {client_id:String}, value
           FROM (SELECT 1) ARRAY JOIN {seconds:Array(Int64)} AS at, {values:Array(Float64)} AS value""",
        {
            "newest_s": NEWEST_S, "client_id": client_id, "metric": metric,
            "seconds": list(values), "values": list(values.values()),
        },
    )  # fmt: skip


def slowed(server: RunningClickHouse, client_id: str, cluster: str = "busy") -> Row | None:
    """As the user of the pages reads it."""
    user = Endpoint("http", server.host, server.writer.port, PAGES, pages_password(server.writer.password))
    with closing(ClickHouse((user,))) as reader:
        asked = {"cluster": cluster, "user": "u", "client_id": client_id}
        found: Row | None = asyncio.run(Data(reader, list, dict).client(asked))["slowed"]
        return found


def test_victim_of_a_client_that_is_heavy_now(server: RunningClickHouse) -> None:
    assert slowed(server, "victim") == {
        "slowed_by_user": "u", "slowed_by_client_id": "heavy", "slowed_at_broker_id": 1, "latency_ms": 900.0,
        "latency_before_ms": 20.0,
    }  # fmt: skip


@pytest.mark.parametrize("client_id", ["heavy", "fast", "throttled", "at another broker", "beside it"])
def test_no_victim(server: RunningClickHouse, client_id: str) -> None:
    """Nor where nothing is known of a time in which the heavy client was not busy."""
    assert slowed(server, client_id) is None


def test_client_of_the_same_name_in_another_cluster_is_no_victim(server: RunningClickHouse) -> None:
    assert slowed(server, "victim", "east") is None
