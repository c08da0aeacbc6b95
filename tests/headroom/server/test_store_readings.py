"""What /metrics shows of the store's contents."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import pytest

from exporters import self_metrics as catalogue
from exporters.clickhouse import minutes
from exporters.clickhouse.connection import Endpoint
from exporters.clickhouse.reader import Nodes, Row
from headroom.server import minute_levels, window_levels
from headroom.server.minute_levels import MinuteLevels
from headroom.server.store_readings import StoreReadings
from headroom.server.window_levels import WindowLevels
from tests.kit.clickhouse import running_clickhouse


def test_unavailable_store_keeps_previous_readings() -> None:
    contents = StoreReadings(Nodes(Endpoint("http", "127.0.0.1", 1)), 5)
    with pytest.raises(ConnectionError):
        asyncio.run(contents.read())
    assert contents.readings() == {catalogue.SPOOL_MAX_BYTES: 5}


@pytest.mark.clickhouse
def test_readings_show_jobs_known_issues_and_window_levels(tmp_path: Path) -> None:
    with running_clickhouse(tmp_path / "clickhouse") as server:
        client = server.writer.connect()
        client.command(
            "INSERT INTO headroom.job_runs (job, run_id, run_version, status, started_at, finished_at) VALUES"
            " ('quota-headroom', generateUUIDv4(), 1, 'succeeded', '2026-01-01 00:00:00', '2026-01-01 00:01:00'),"
            " ('quota-headroom', generateUUIDv4(), 2, 'failed', '2026-01-01 01:00:00', '2026-01-01 01:01:00')"
        )
        client.command(
            "INSERT INTO headroom.client_instances (cluster, client_instance_id, client_id, principal, software_name,"
            " software_version, first_seen, last_seen, pushes, points) VALUES"
            " ('c', generateUUIDv4(), 'a', 'u', 'librdkafka', '2.5.0', now64(3), now64(3), 1, 1),"
            " ('c', generateUUIDv4(), 'b', 'u', 'librdkafka', '2.12.0', now64(3), now64(3), 1, 1)"
        )
        client.command(
            "INSERT INTO headroom.quota_usage (cluster, quota_key, ts, user, client_id, ip, broker_id, bytes, rate,"
            " throttle_ms, throttled_requests, source, gateway_id, interval_ms, limit, limit_known, matched_entity,"
            " bucket_user, bucket_client_id, muted_ms)"
            " SELECT 'c', 'producer_byte_rate', toDateTime(toStartOfMinute(now()) - 300 + number), 'u', name, '', 1, 9,"
            " 90, 0, 0, 'gateway', 'gw', 1000, bound, 1, '', 'u', name, if(name = 'b', 15, 0)"
            " FROM numbers(600) ARRAY JOIN ['a', 'b', repeat('c', 256)] AS name, [100, NULL, 1] AS bound"
        )
        client.close()
        contents = StoreReadings(Nodes(server.writer), 5, max_client_series=1_000)
        asyncio.run(contents.read())
        own, levels = contents.tasks()
        assert own.name != levels.name
        asyncio.run(awaited(levels.step()))
        assert contents.readings()[catalogue.KNOWN_ISSUES] == 1
        assert contents.readings()[catalogue.JOB_SUCCESS] == {"quota-headroom": 1_767_225_660}
        shown = contents.readings()
        producer = ("c", "Produce", "u")
        assert shown[catalogue.WINDOW_UTILIZATION] == {
            (*producer, "a", "gateway", "mean"): 0.9,
            (*producer, "a", "gateway", "p95"): 0.9,
        }
        assert shown[catalogue.WINDOW_MUTED] == {(*producer, "a", "gateway"): 0, (*producer, "b", "gateway"): 0.015}
        assert shown[catalogue.WINDOW_LIMIT_KNOWN] == {(*producer, name, "gateway"): 1 for name in "ab"}


async def awaited(step: Awaitable[None]) -> None:
    await step


class FakeStore:
    """Answers the statements of MinuteLevels. `rows`: of the minute."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows, self.computed = 5, list[int]()
        monkeypatch.setattr(minute_levels, "read_rows", self.read)
        monkeypatch.setattr(minute_levels, "run_statement", self.run)

    def read(self, _: Endpoint, sql: str, parameters: Row, *, timeout_s: float) -> list[Row]:
        assert (sql, timeout_s) == (minutes.COUNT_ROWS, 5)
        return [{"rows": self.rows}]

    def run(self, _: Endpoint, sql: str, parameters: Row, settings: Row, *, timeout_s: float) -> None:
        assert (sql, settings, timeout_s) == (minutes.COMPUTE_MINUTE, {"quorum": "2"}, 60)
        self.computed.append(parameters["window_s"])


def test_minute_is_computed_once_and_again_when_rows_arrive_late(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, followed, store = 1_000_000, list[int](), FakeStore(monkeypatch)

    async def follow(window_s: int) -> None:
        followed.append(window_s)

    nodes = Nodes(Endpoint("http", "127.0.0.1", 1))
    levels = MinuteLevels(nodes, {"quorum": "2"}, follow, now_ms=lambda: now_s * 1000)
    asyncio.run(levels.step())
    asyncio.run(levels.step())
    assert store.computed == [999_900]  # the minute from 999,960 on has not ended
    store.rows += 1
    asyncio.run(levels.step())
    assert store.computed == [999_900]  # not at once
    now_s += 10
    asyncio.run(levels.step())
    now_s += 10
    asyncio.run(levels.step())
    assert store.computed == [999_900] * 2
    now_s += 4
    asyncio.run(levels.step())
    assert store.computed == followed == [999_900, 999_900, 999_960]  # four seconds after its end


def test_failed_minute_is_computed_again_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FakeStore(monkeypatch)

    async def fail(window_s: int) -> None:
        raise ConnectionError

    now_s = 1_000_000
    levels = MinuteLevels(Nodes(Endpoint("http", "127.0.0.1", 1)), {"quorum": "2"}, fail, now_ms=lambda: now_s * 1000)
    for tries in (1, 2):
        with pytest.raises(ConnectionError):
            asyncio.run(levels.step())
        asyncio.run(levels.step())  # not at once: a minute that is too much for the store would keep it busy
        assert store.computed == [999_900] * tries
        now_s += 10


def test_outdated_window_levels_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1_000_000
    levels = WindowLevels(Nodes(Endpoint("http", "127.0.0.1", 1)), 8, now_ms=lambda: now_s * 1000)
    monkeypatch.setattr(window_levels, "read_rows", lambda *_, **__: [])
    asyncio.run(levels.read(999_900))
    assert levels.readings()[catalogue.WINDOW_START] == 999_900
    now_s += 81
    assert levels.readings() == {}
