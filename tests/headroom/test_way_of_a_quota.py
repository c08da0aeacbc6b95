"""The way of a quota change in ARCHITECTURE.md is one that runs, from the cluster to the page.

Decoders, types of data and what carries every row run as well, and are not listed.
"""

import asyncio
import time
from contextlib import AsyncExitStack, closing
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Producer
from starlette.applications import Starlette

from exporters.clickhouse.client import ClickHouse
from exporters.clickhouse.store import Store
from exporters.spool.reader import SpoolReader
from exporters.spool.records import USAGE_WRITER
from headroom.clock import now_ms
from headroom.config.settings import ServeConfig
from headroom.demo.broker import LocalCluster
from headroom.demo.jvm import Admin
from headroom.server.cluster.cluster_metadata import ClusterStart
from headroom.server.listeners.kafka_listeners import open_gateway
from headroom.server.processes.assembly import open_push_spool, open_spool
from headroom.server.processes.level_schedule import LevelSchedule
from headroom.web.data import Data
from headroom.web.pages import page_routes
from quota_metrics.minutes.live import LiveLevels
from telemetry.ingest.ingester import Ingester, IngestOptions
from telemetry.ingest.progress import Progress
from telemetry.ingest.quarantine import Quarantine
from tests.kit.clickhouse import running_clickhouse
from tests.kit.ways import files_that_run, listed

pytestmark = [pytest.mark.kafka, pytest.mark.clickhouse, pytest.mark.interpreted]

MIB = 1 << 20
CLIENT, TOPIC = "way-of-a-quota", "way-of-a-quota"


def produce(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": CLIENT})
    producer.produce(TOPIC, bytes(50_000))
    assert producer.flush(60) == 0


async def measured(kafka: LocalCluster, kafka_admin: Admin, data: Path, store: ClickHouse) -> None:
    """A quota is set while the gateway runs, a client of it produces, and both are in the spool."""
    config = ServeConfig.model_validate({"upstream": kafka.bootstrap, "listen": "127.0.0.1:0", "data": data})
    async with AsyncExitStack() as stack:
        pushes, quotas = open_push_spool(config, "gw", stack), open_spool(config, USAGE_WRITER, stack)
        start = ClusterStart(config, stack)
        cluster = await start.admin.describe_cluster()
        service = await open_gateway(config, start.admin, cluster, pushes, quotas, store, stack)
        steps = {task.name: task.step for task in service.periodic_tasks}
        await asyncio.to_thread(kafka_admin.alter_quota, {"client-id": CLIENT}, {"producer_byte_rate": 200_000.0})
        known = quotas.records
        while quotas.records == known:  # until the broker has it
            await steps["quotas"]()
        await asyncio.to_thread(produce, str(service.address))
        await steps["usage"]()


async def shown(clickhouse: ClickHouse, minute_ms: int) -> str:
    """The overview, after the minute has been computed."""
    computed: list[int] = []
    LevelSchedule(clickhouse, LiveLevels(clickhouse, now_ms), "way", computed.append, lambda: minute_ms + 70_000).step()
    assert computed == [minute_ms // 1000]
    app = Starlette(routes=page_routes(Data(clickhouse, list, dict)))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as browser:
        return (await browser.get("/")).raise_for_status().text


def test_a_quota_change_runs_through_the_listed_files(kafka: LocalCluster, kafka_admin: Admin, tmp_path: Path) -> None:
    kafka_admin.create_topics([TOPIC])
    with running_clickhouse(tmp_path / "clickhouse") as clickhouse:
        store = ClickHouse((clickhouse.writer,))
        with files_that_run() as files:
            asyncio.run(measured(kafka, kafka_admin, tmp_path, store))
            minute_ms = now_ms() // 60_000 * 60_000
            options = IngestOptions(max_decompressed_bytes=MIB, rollup_interval_ms=60_000)
            with closing(SpoolReader(tmp_path / "spool")) as reader, closing(Store(clickhouse.writer)) as writer:
                quarantine = Quarantine(tmp_path / "quarantine", 10, MIB)
                ingester = Ingester(reader, writer, quarantine, options, Progress(time.monotonic))
                while ingester.step(now_ms()):
                    pass
            page = asyncio.run(shown(store, minute_ms))
        store.close()
    assert CLIENT in page
    assert "/ 200.0 kB/s" in page
    way, _ = listed("The way of a quota change")
    assert [file for file in way if file not in files] == []
    assert len(way) <= 15
