"""What /metrics shows of the store's contents."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from exporters import self_metrics as catalogue
from exporters.clickhouse.client import ClickHouse, Row
from exporters.clickhouse.connection import Endpoint
from exporters.model import UNOWNED
from headroom.clock import now_ms
from headroom.server.store_readings import StoreReadings
from quota_metrics.config.owners import parse_owners
from quota_metrics.minutes.live import LiveLevels
from quota_metrics.minutes.teams import Teams
from quota_metrics.verdict.thresholds import Thresholds
from tests.kit.clickhouse import running_clickhouse
from tests.kit.levels import sample, write

NOBODY = ClickHouse((Endpoint("http", "127.0.0.1", 1),))


def test_unavailable_store_keeps_previous_readings() -> None:
    contents = StoreReadings(NOBODY, 5)
    assert [task.name for task in contents.tasks()] == ["store readings"]  # series of clients are off
    with pytest.raises(ConnectionError):
        asyncio.run(contents.read())
    assert contents.readings() == {catalogue.SPOOL_MAX_BYTES: 5}


@pytest.mark.clickhouse
def test_readings_show_jobs_known_issues_and_window_levels(tmp_path: Path) -> None:
    with running_clickhouse(tmp_path / "clickhouse") as server:
        server.store.query(
            "INSERT INTO headroom.job_runs (job, run_id, run_version, status, started_at, finished_at) VALUES"
            " ('quota-headroom', generateUUIDv4(), 1, 'succeeded', '2026-01-01 00:00:00', '2026-01-01 00:01:00'),"
            " ('quota-headroom', generateUUIDv4(), 2, 'failed', '2026-01-01 01:00:00', '2026-01-01 01:01:00')"
        )
        server.store.query(
            "INSERT INTO headroom.client_instances (cluster, client_instance_id, client_id, principal, software_name,"
            " software_version, first_seen, last_seen, pushes, points) VALUES"
            " ('c', generateUUIDv4(), 'a', 'u', 'librdkafka', '2.5.0', now64(3), now64(3), 1, 1),"
            " ('c', generateUUIDv4(), 'b', 'u', 'librdkafka', '2.12.0', now64(3), now64(3), 1, 1)"
        )
        store, minute_s = ClickHouse((server.writer,)), now_ms() // 60_000 * 60 - 60
        for name, more in (
            ("a", {"limit": 100.0}),
            ("b", {"limit": None, "muted_ms": 15}),
            (256 * "c", {"limit": 1.0}),
            ("", {"limit": 100.0, "source": "jmx", "bucket_client_id": "a"}),  # of the bucket of `a`
            ("direct", {"limit": 100.0, "source": "jmx"}),  # it bypasses the gateway
        ):
            client = {"user": "u", "client_id": name, "bucket_user": "u", "bucket_client_id": name, **more}
            usage = [sample("c", 1000 * at_s, 90.0, **client) for at_s in range(minute_s - 240, minute_s + 360)]
            write(server.store, usage, name)
        server.store.query(
            "INSERT INTO headroom.points (cluster, metric, ts, principal, client_id, client_instance_id, value) SELECT"
            " 'c', 'org.apache.kafka.producer.record.queue.time.max',"
            " toDateTime(toStartOfMinute(now()) - 300 + 10 * number), 'u', 'a', generateUUIDv4(), 2500 FROM numbers(60)"
        )
        teams = Teams(parse_owners(b"owners: [{team: payments, user: u, client-id: a}]"))
        LiveLevels(store, now_ms, teams).compute_minute(minute_s, Thresholds())
        newest_s = [0]
        contents = StoreReadings(store, 5, max_client_series=1_000, newest_s=lambda: newest_s[0])
        asyncio.run(contents.read())
        asyncio.run(contents.read_levels())
        assert catalogue.WINDOW_START not in contents.readings()
        newest_s[0] = minute_s
        asyncio.run(contents.read_levels())
        assert contents.readings()[catalogue.WINDOW_START] == minute_s
        assert contents.readings()[catalogue.KNOWN_ISSUES] == 1
        assert contents.readings()[catalogue.JOB_SUCCESS] == {"quota-headroom": 1_767_225_660}
        shown = contents.readings()
        limited, muted = (("c", "Produce", "u", name, "gateway") for name in ("a", "b"))
        direct = ("c", "Produce", "u", "direct", "jmx")
        statistics = ("mean", "p95")
        assert shown[catalogue.WINDOW_UTILIZATION] == {
            (*of, name): 0.9 for of in (limited, direct) for name in statistics
        }
        assert shown[catalogue.WINDOW_MUTED] == {limited: 0, muted: 0.015, direct: 0}
        assert shown[catalogue.CLIENT_LEVEL] == {(*limited, "payments"): 2, (*muted, UNOWNED): 4, (*direct, UNOWNED): 2}
        assert shown[catalogue.CLIENT_LIMIT] == {limited: 100, muted: float("inf"), direct: 100}
        assert shown[catalogue.CLIENT_USAGE] == {limited: 90, muted: 90, direct: 90}
        assert shown[catalogue.CLIENT_UTILIZATION] == {limited: 0.9, direct: 0.9}
        assert shown[catalogue.CLIENT_THROTTLE] == {limited: 0, muted: 0.9, direct: 0}  # by a throttle time from before
        assert shown[catalogue.SERIES_LEFT_OUT] == 9  # the client with the long name
        assert shown[catalogue.CLIENT_IMPACT] == {limited: 1, muted: -1, direct: -1}


def test_outdated_window_levels_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1_000_000
    levels = StoreReadings(NOBODY, 5, max_client_series=9, newest_s=lambda: 999_900, now_ms=lambda: now_s * 1000)
    monkeypatch.setattr(ClickHouse, "rows", lambda *_: [])
    asyncio.run(levels.read_levels())
    assert levels.readings()[catalogue.WINDOW_START] == 999_900
    now_s += 81
    assert levels.readings() == {catalogue.SPOOL_MAX_BYTES: 5, catalogue.SERIES_LEFT_OUT: 0}


def test_budget_keeps_the_worst_clients_and_counts_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, int | str]] = []

    def rows(_: ClickHouse, __: str, parameters: dict[str, int | str]) -> list[Row]:
        asked.append(parameters)
        return [row]

    client = {"cluster": "c", "quota_key": "producer_byte_rate", "user": "u", "client_id": "a", "source": "gateway"}
    numbers = {"mean": None, "p95": None, "muted": 0.0, "level": -1.0, "usage": 5.0, "throttle_s": 0.0, "bound": None}
    row = {**client, **numbers, "team": UNOWNED, "impact": "unknown", "clients": 10}
    monkeypatch.setattr(ClickHouse, "rows", rows)
    windows_s = iter([900, 960])
    readings: dict[str, Any] = {"newest_s": lambda: next(windows_s), "now_ms": lambda: 1_000_000}
    levels = StoreReadings(NOBODY, 5, max_client_series=17, **readings)
    for _ in range(2):
        asyncio.run(levels.read_levels())
    assert asked[0] == {"window_s": 900, "source": "gateway", "clients": 1}
    assert levels.readings()[catalogue.SERIES_LEFT_OUT] == 2 * 9 * 9
    # A limit that is not known, because the brokers' class decides it, is not shown.
    assert not {catalogue.CLIENT_LIMIT, catalogue.CLIENT_UTILIZATION} & levels.readings().keys()
