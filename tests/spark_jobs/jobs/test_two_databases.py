"""Two Headrooms on one ClickHouse server, in databases of their own: each reads and writes all it has in its own."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from exporters import self_metrics as catalogue
from exporters.clickhouse.client import ClickHouse
from exporters.clickhouse.connection import Endpoint
from exporters.clickhouse.managed.configuration import ServerSettings, write_document
from exporters.model import QuotaLimit
from headroom.server.quotas.quota_state import stored_limits
from headroom.server.store_readings import StoreReadings
from headroom.web.data import Data
from quota_metrics.verdict.thresholds import SCHEMA_VALUES
from spark_jobs.jobs import quota_headroom
from spark_jobs.options import HeadroomOptions
from spark_jobs.time_range import TimeRange
from telemetry.ingest.arrow_tables import limits_table
from tests.kit.clickhouse import LaunchedServer, QueriedStore, launched
from tests.kit.levels import compute_levels, sample, write
from tests.kit.points import points

pytestmark = [pytest.mark.clickhouse, pytest.mark.spark]

NAMES = ("headroom", "ops")


@pytest.fixture(scope="module")
def endpoints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Endpoint]]:
    directory: Path = tmp_path_factory.mktemp("databases") / "clickhouse"
    (directory / "users.d").mkdir(parents=True)
    owner = {"password": "pass", "profile": "writer", "quota": "default", "networks": {"ip": "::/0"}}
    grants = [*(f"GRANT ALL ON {name}.*" for name in NAMES), "GRANT SELECT ON *.*"]
    write_document(directory / "users.d" / "owner.xml", {"users": {"owner": {**owner, "grants": {"query": grants}}}})
    with launched(LaunchedServer(ServerSettings(directory))) as server:
        url = str(server.writer).replace("//", "//owner@")
        yield {name: Endpoint.parse(f"{url}/{name}", "pass") for name in NAMES}


def test_each_database_is_complete_and_has_nothing_of_the_other(
    endpoints: dict[str, Endpoint], spark: SparkSession
) -> None:
    minute_s = int(time.time()) // 60 * 60 - 60
    hour_s = minute_s // 3600 * 3600 - 3600  # jobs read whole hours from usage_1m
    for name, endpoint in endpoints.items():
        store = QueriedStore(endpoint)
        store.migrate(SCHEMA_VALUES)
        store.check()
        store.insert("points", points(name, 10), token=name)  # of a cluster named as the database
        limits = [QuotaLimit(name, "alice", "", "", "producer_byte_rate", minute_s * 1000, 1000.0)]
        store.insert("quota_limits", limits_table(limits, minute_s * 1000), token=name)
        seconds = [at_s + second for at_s in (hour_s, minute_s) for second in range(1, 60)]
        write(store, [sample(name, at_s * 1000, 990.0) for at_s in seconds], name)
        compute_levels(store, minute_s)
        store.close()
    for name, endpoint in endpoints.items():
        clickhouse = ClickHouse((endpoint,))
        assert [limit.value for limit in stored_limits(clickhouse, name)] == [1000.0]
        telemetry = "SELECT DISTINCT cluster, count() AS points FROM client_metrics GROUP BY cluster"
        assert clickhouse.rows(telemetry) == [{"cluster": name, "points": 10}]
        page = asyncio.run(Data(clickhouse, list, dict).headroom({}))
        assert [(row["cluster"], row["level"]) for row in page] == [(name, "critical")]
        url = f"{endpoint.scheme}://{endpoint.user}@{endpoint.host}:{endpoint.port}/{name}"
        when = TimeRange(hour_s * 1000, minute_s * 1000 + 60_000)
        report = quota_headroom.run(HeadroomOptions(url, when, password=endpoint.password)).rows
        assert [(row["cluster"], row["level"]) for row in report] == [(name, "critical")]
        published = (
            "SELECT cluster, toUnixTimestamp(window_start) AS at_s FROM quota_utilization_committed"
            " WHERE level = 'critical' ORDER BY at_s"
        )
        assert [(row["cluster"], int(row["at_s"])) for row in clickhouse.rows(published)] == [
            (name, hour_s),
            (name, minute_s),
        ]
        readings = StoreReadings(clickhouse, 1)
        asyncio.run(readings.read())
        shown = readings.readings()[catalogue.JOB_SUCCESS]
        assert isinstance(shown, dict)
        assert list(shown) == ["quota_headroom"]
        clickhouse.close()
