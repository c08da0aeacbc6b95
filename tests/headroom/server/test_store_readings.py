"""What /metrics shows of the store's contents."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from exporters import self_metrics as catalogue
from exporters.clickhouse.client import ClickHouse, Row
from exporters.clickhouse.connection import Endpoint
from exporters.clickhouse.errors import QUERY_WITH_SAME_ID_IS_ALREADY_RUNNING, StoreError
from exporters.model import UNOWNED
from headroom.owners import OwnersInForce
from headroom.server.minute_levels import MinuteLevels
from headroom.server.store_readings import StoreReadings
from headroom.server.window_levels import WindowLevels
from quota_metrics.config.owners import parse_owners
from quota_metrics.levels import minute
from quota_metrics.levels.definition import Thresholds
from tests.kit.clickhouse import connected, running_clickhouse

NOBODY = ClickHouse((Endpoint("http", "127.0.0.1", 1),))


def test_unavailable_store_keeps_previous_readings() -> None:
    contents = StoreReadings(NOBODY, 5)
    with pytest.raises(ConnectionError):
        asyncio.run(contents.read())
    assert contents.readings() == {catalogue.SPOOL_MAX_BYTES: 5}


@pytest.mark.clickhouse
def test_readings_show_jobs_known_issues_and_window_levels(tmp_path: Path) -> None:
    with running_clickhouse(tmp_path / "clickhouse") as server:
        client = connected(server.writer)
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
        client.command(
            "INSERT INTO headroom.points (cluster, metric, ts, principal, client_id, client_instance_id, value) SELECT"
            " 'c', 'org.apache.kafka.producer.record.queue.time.max',"
            " toDateTime(toStartOfMinute(now()) - 300 + 10 * number), 'u', 'a', generateUUIDv4(), 2500 FROM numbers(60)"
        )
        client.close()
        owners = OwnersInForce(parse_owners(b"owners: [{team: payments, user: u, client-id: a}]"))
        contents = StoreReadings(ClickHouse((server.writer,)), 5, max_client_series=1_000, owners=owners)
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
        assert shown[catalogue.CLIENT_LEVEL] == {
            (*producer, "a", "gateway", "payments"): 2,
            (*producer, "b", "gateway", UNOWNED): 4,
        }
        assert shown[catalogue.CLIENT_IMPACT] == {(*producer, "a", "gateway"): 1, (*producer, "b", "gateway"): -1}


async def awaited(step: Awaitable[None]) -> None:
    await step


class FakeStore:
    """Answers the statements of MinuteLevels. `changed`: the rows of each minute that received rows lately."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.changed: dict[int, int] = {}
        self.computed: list[int] = []
        self.thresholds: list[Row] = []
        self.query_ids: list[str] = []
        self.bears_telemetry = True
        self.is_busy = False
        self.in_force = Thresholds()
        monkeypatch.setattr(ClickHouse, "rows", lambda clickhouse, *asked: self.read(clickhouse, *asked))
        monkeypatch.setattr(ClickHouse, "command", lambda *asked, **with_: self.run(*asked, **with_))

    def read(self, clickhouse: ClickHouse, sql: str, parameters: Row) -> list[Row]:
        if sql == minute.THRESHOLDS:
            return self.thresholds
        assert (sql, clickhouse.timeout_s) == (minute.CHANGED_MINUTES, 5)
        within = range(parameters["first_s"], parameters["last_s"] + 1)
        return [{"window_s": at, "rows": rows} for at, rows in self.changed.items() if at in within]

    def run(self, clickhouse: ClickHouse, sql: str, parameters: Row, *, settings: Mapping[str, str]) -> None:
        half = str(max((os.cpu_count() or 1) // 2, 1))  # of the cores: pages are read on the others
        in_force = {"quorum": "2", "max_execution_time": "50", "max_threads": half}
        assert (clickhouse.settings, clickhouse.timeout_s) == (in_force, 60)
        if sql == minute.SET_THRESHOLDS:
            self.thresholds = [parameters]
        else:
            assert sql == minute.compute_minute(self.in_force)
            self.query_ids.append(settings["query_id"])
            if self.is_busy:
                raise StoreError("it is already running", QUERY_WITH_SAME_ID_IS_ALREADY_RUNNING)
            if parameters["telemetry"] > self.bears_telemetry:
                raise StoreError("TIMEOUT_EXCEEDED", 159)
            self.computed.append(parameters["from_ms"] // 1000)


def test_minute_is_computed_once_and_again_when_rows_arrive_late(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, followed, store = 1_000_000, list[int](), FakeStore(monkeypatch)

    async def follow(window_s: int) -> None:
        followed.append(window_s)

    levels = MinuteLevels(replace(NOBODY, settings={"quorum": "2"}), follow, now_ms=lambda: now_s * 1000)
    store.changed = {999_900: 5, 999_960: 1}
    asyncio.run(levels.step())
    asyncio.run(levels.step())
    assert store.computed == [999_900]  # the minute from 999,960 on has not ended
    assert store.thresholds == [Thresholds()._asdict()]
    store.changed[999_900] += 1
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


def test_changed_thresholds_are_stored_and_hold_from_the_next_minute_on(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, store = 1_000_000, FakeStore(monkeypatch)

    async def computed(window_s: int) -> None:
        pass

    levels = MinuteLevels(replace(NOBODY, settings={"quorum": "2"}), computed, now_ms=lambda: now_s * 1000)
    store.changed = {999_900: 5}
    asyncio.run(levels.step())
    store.in_force = Thresholds(watch=0.7)
    levels.follow(store.in_force)
    store.changed, now_s = {999_960: 1}, now_s + 24
    asyncio.run(levels.step())
    assert store.thresholds == [store.in_force._asdict()]
    assert store.computed == [999_900, 999_960]


def test_levels_do_without_telemetry_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """For ten minutes; then it is read again."""
    now_s, store = 1_000_000, FakeStore(monkeypatch)

    async def follow(window_s: int) -> None:
        pass

    levels = MinuteLevels(replace(NOBODY, settings={"quorum": "2"}), follow, now_ms=lambda: now_s * 1000)
    store.changed, store.bears_telemetry = {999_900: 5}, False
    with pytest.raises(ConnectionError):
        asyncio.run(levels.step())
    now_s += 20
    asyncio.run(levels.step())
    assert store.computed == [999_900]
    store.changed = {1_000_500: 5}
    now_s = 1_000_565
    with pytest.raises(ConnectionError):
        asyncio.run(levels.step())


def test_computations_do_not_pile_up_in_a_busy_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """One service has one there, whose id the next one has; what was refused is computed later, with telemetry."""
    now_s, store = 1_000_000, FakeStore(monkeypatch)

    async def follow(window_s: int) -> None:
        pass

    services = [
        MinuteLevels(replace(NOBODY, settings={"quorum": "2"}), follow, now_ms=lambda: now_s * 1000) for _ in range(2)
    ]
    store.changed, store.is_busy, store.bears_telemetry = {999_900: 5}, True, True
    for levels in services:
        with pytest.raises(ConnectionError, match="still at the computation before"):
            asyncio.run(levels.step())
    store.is_busy, now_s = False, now_s + 20
    for levels in services:
        asyncio.run(levels.step())
    assert store.computed == [999_900, 999_900]
    assert store.query_ids[:2] == store.query_ids[2:]
    assert len(set(store.query_ids)) == 2


def test_late_rows_of_an_earlier_minute_change_the_memory_of_those_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, store = 1_000_000, FakeStore(monkeypatch)

    async def follow(window_s: int) -> None:
        pass

    levels = MinuteLevels(replace(NOBODY, settings={"quorum": "2"}), follow, now_ms=lambda: now_s * 1000)
    store.changed = {999_840: 5, 999_900: 5}
    for _ in range(2):
        asyncio.run(levels.step())
        now_s += 20
    assert store.computed == [999_900, 999_840]  # the newest first
    for _ in range(3):
        asyncio.run(levels.step())
        now_s += 20
    assert store.computed == [999_900, 999_840, 999_960, 999_900]  # whose memory has changed
    store.changed = {999_000: 7}  # an import of an hour that was empty before
    for _ in range(3):
        asyncio.run(levels.step())
        now_s += 10
    assert store.computed[4:] == [1_000_020, 999_000]


def test_failed_minute_is_computed_again_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FakeStore(monkeypatch)

    async def fail(window_s: int) -> None:
        raise ConnectionError

    now_s = 1_000_000
    levels = MinuteLevels(replace(NOBODY, settings={"quorum": "2"}), fail, now_ms=lambda: now_s * 1000)
    for tries in (1, 2):
        with pytest.raises(ConnectionError):
            asyncio.run(levels.step())
        asyncio.run(levels.step())  # not at once: a minute that is too much for the store would keep it busy
        assert store.computed == [999_900] * tries
        now_s += 10


def test_outdated_window_levels_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1_000_000
    levels = WindowLevels(NOBODY, 8, now_ms=lambda: now_s * 1000)
    monkeypatch.setattr(ClickHouse, "rows", lambda *_: [])
    asyncio.run(levels.read(999_900))
    assert levels.readings()[catalogue.WINDOW_START] == 999_900
    now_s += 81
    assert levels.readings() == {}
