"""The way of a push in ARCHITECTURE.md is the one that runs, from its socket to its rows."""

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from exporters.clickhouse.connection import Endpoint
from exporters.clickhouse.store import Store
from exporters.spool.reader import SpoolReader
from headroom.clock import now_ms
from headroom.config.settings import ServeConfig
from headroom.config.sources import load
from headroom.server.processes.assembly import new_gateway, open_push_spool, telemetry_receiver
from quota_metrics.kafka.cluster import Node
from telemetry.ingest.ingester import Ingester, IngestOptions
from telemetry.ingest.progress import Progress
from telemetry.ingest.quarantine import Quarantine
from tests.kit.fake_clickhouse import fake_clickhouse, http
from tests.kit.gateways import LOOPBACK
from tests.kit.ways import files_that_run, listed
from tests.kit.wire import GET, NEW_ID, error_code, push, request, subscribed

MIB = 1 << 20
JAVA = (Path(__file__).parents[1] / "vectors" / "java-4.3.1-producer.zst").read_bytes()
# Beside the way, as ARCHITECTURE says: what is reported to the supervisor, and what follows a written batch.
NOT_COUNTED = {
    "exporters/clickhouse/connection_pool.py",  # over which connection a statement is sent
    "exporters/clickhouse/profile.py",  # which settings a statement assumes
    "headroom/clock.py",
    "telemetry/ingest/progress.py",
    "telemetry/ingest/rollups.py",
}


async def pushed(config: ServeConfig, times: int) -> set[str]:
    """The files that the last push ran through, up to its acknowledgement. The broker stays silent."""
    async with AsyncExitStack() as stack, await asyncio.start_server(_silent, LOOPBACK, 0) as broker:
        spool = open_push_spool(config, "gw", stack)
        receiver = telemetry_receiver(config, spool)
        receiver.rules.replace_all({"all": {"metrics": "*", "interval.ms": "100"}}, 0)
        gateway = new_gateway(config, "test", receiver, spool)
        address = await gateway.start([Node(1, LOOPBACK, broker.sockets[0].getsockname()[1])])
        streams = await asyncio.open_connection(*address)
        instance, subscription = subscribed(await _answer(streams, request(GET, NEW_ID + b"\0")))
        frame = push(instance, subscription, 4, JAVA)
        for _ in range(times):
            await asyncio.sleep(0.2)  # more than its interval
            with files_that_run() as files:
                answer = await _answer(streams, frame)
            assert error_code(answer) == 0
        streams[1].close()
        await gateway.close(1)
    return files


async def _silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


async def _answer(streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], frame: bytes) -> bytes:
    streams[1].write(frame)
    length = await streams[0].readexactly(4)
    return length + await streams[0].readexactly(int.from_bytes(length, "big"))


@pytest.mark.interpreted
def test_a_push_runs_through_the_listed_files_only(tmp_path: Path) -> None:
    pushes = 3  # the first makes the gateway know its header, and ingest its structure
    reader = SpoolReader(tmp_path / "spool")
    files = asyncio.run(pushed(load(None, {"data": tmp_path, "listen": f"{LOOPBACK}:0"}), pushes))
    with fake_clickhouse(http(b"", written_rows=MIB)) as clickhouse:
        options = IngestOptions(max_decompressed_bytes=MIB, rollup_interval_ms=60_000, max_records=1)
        quarantine = Quarantine(tmp_path / "quarantine", 10, MIB)
        store = Store(Endpoint.parse(clickhouse.url))
        ingester = Ingester(reader, store, quarantine, options, Progress(time.monotonic))
        for _ in range(pushes + 1):  # the first record says that the client was seen
            with files_that_run() as last:
                assert ingester.step(now_ms()) == 1
            stored = last
        store.close()
    reader.close()
    carriers, asked = listed("The way of a push")
    assert sorted(files | stored) == sorted({*carriers, *asked, *NOT_COUNTED})
    assert len(carriers) <= 15
