"""Who makes a client slow, as its page reads it from the minutes of a real server."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from pathlib import Path

import pytest

from exporters.clickhouse.client import ClickHouse, Row
from exporters.clickhouse.connection import Endpoint
from exporters.clickhouse.managed.access import PAGES, pages_password
from headroom.web.data import Data
from tests.kit.clickhouse import RunningClickHouse, running_clickhouse

pytestmark = pytest.mark.clickhouse


def test_who_makes_a_client_slow_is_told_of_the_newest_minute(tmp_path: Path) -> None:
    """As the job's report says it: in each of ten minutes, in the last three of which the heavy client runs."""
    with running_clickhouse(tmp_path) as server:
        user = Endpoint("http", server.host, server.writer.port, PAGES, pages_password(server.writer.password))
        with closing(ClickHouse((user,))) as reader:
            told(server, reader, int(time.time()) // 60 * 60 - 60)


def told(server: RunningClickHouse, reader: ClickHouse, newest_s: int) -> None:
    rates = {"heavy": (50.0, 5000.0), "victim": (100.0, 100.0), "fast": (100.0, 100.0), "away": (10.0, 10.0)}
    for client_id, (before, during) in rates.items():
        server.store.query(
            """INSERT INTO headroom.headroom_minutes (window_start, computed_at, is_worst, cluster, source, quota_key,
                   user, client_id, broker_id, usage, level, instant_level, window_s)
               SELECT fromUnixTimestamp({newest_s:Int64}) - 60 * number, toDateTime64({newest_s:Int64} + computed, 3),
                   1, 'busy', 'gateway', 'producer_byte_rate', 'u', {client_id:String}, {broker_id:Int32},
                   if(computed = 0, 0, if(number < 3, {during:Float64}, {before:Float64})), 'ok', 'ok', 60
               FROM numbers(10) AS minutes CROSS JOIN (SELECT arrayJoin([0, 1]) AS computed) AS computations""",
            {"newest_s": newest_s, "client_id": client_id, "broker_id": 2 if client_id == "away" else 1,
             "before": before, "during": during},
        )  # fmt: skip
    for client_id, during_ms in (("victim", 900.0), ("fast", 30.0), ("away", 900.0), ("heavy", 900.0)):
        server.store.query(
            """INSERT INTO headroom.points (cluster, metric, ts, principal, client_id, value)
               SELECT 'busy', 'org.apache.kafka.producer.node.request.latency.max',
                   toDateTime64({newest_s:Int64} - 60 * number + 30, 3), 'u', {client_id:String},
                   if(number < 3, {during_ms:Float64}, 20)
               FROM numbers(10)""",
            {"newest_s": newest_s, "client_id": client_id, "during_ms": during_ms},
        )

    def slowed(client_id: str, cluster: str = "busy") -> Row | None:
        asked = {"cluster": cluster, "user": "u", "client_id": client_id}
        found: Row | None = asyncio.run(Data(reader, list, dict).client(asked))["slowed"]
        return found

    assert slowed("victim") == {
        "slowed_by_user": "u", "slowed_by_client_id": "heavy", "slowed_at_broker_id": 1, "latency_ms": 900.0,
        "latency_before_ms": 20.0,
    }  # fmt: skip
    assert slowed("fast") is slowed("away") is slowed("heavy") is slowed("victim", "east") is None
    server.store.query(
        """INSERT INTO headroom.points (cluster, metric, ts, principal, client_id, value)
           SELECT 'busy', 'org.apache.kafka.producer.produce.throttle.time.max',
               toDateTime64({newest_s:Int64} + 30, 3), 'u', 'victim', 50""",
        {"newest_s": newest_s},
    )
    assert slowed("victim") is None  # it is throttled itself
