"""What /metrics shows of the store's contents."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from exporters import self_metrics as catalogue
from exporters.clickhouse.connection import Endpoint
from headroom.server.store_readings import StoreReadings
from tests.kit.clickhouse import running_clickhouse


def test_a_store_that_is_away_leaves_the_answers_as_they_were() -> None:
    contents = StoreReadings(Endpoint("http", "127.0.0.1", 1), 5)
    with pytest.raises(ConnectionError):
        asyncio.run(contents.read())
    assert contents.readings() == {catalogue.SPOOL_MAX_BYTES: 5}


@pytest.mark.clickhouse
def test_jobs_that_succeeded_and_clients_with_known_issues_are_counted(tmp_path: Path) -> None:
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
        client.close()
        contents = StoreReadings(server.writer, 5)
        asyncio.run(contents.read())
        assert contents.readings()[catalogue.KNOWN_ISSUES] == 1
        assert contents.readings()[catalogue.JOB_SUCCESS] == {"quota-headroom": 1_767_225_660}
