"""Traces a sink under load with `fsync: each`, then simulates power losses at random points of the trace.

For each power loss the spool is rebuilt from the synced data and read by the reader that a restart would use. Together
with the rows of durable parts it must contain every push acknowledged before.
"""

import asyncio
import random
import struct
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from exporters.clickhouse.client import with_writer
from exporters.clickhouse.connection import Endpoint
from exporters.model import RecordKind
from exporters.spool.reader import SpoolReader
from exporters.spool.records import decode_push
from headroom.demo.processes import LOOPBACK
from tests.chaos.audit import stop_merges
from tests.chaos.load import metrics_data
from tests.chaos.wire import WireClient
from tests.kit.clickhouse import connected
from tests.kit.serving import Served, config_file, eventually
from tests.powerloss.disk import calls_of, durable_parts, fed
from tests.powerloss.strace_log import COMMAND, Call, calls

CLIENTS = 8
_EVERY_MS = 100
_SOCKET_WRITES = ("write", "writev", "sendto", "sendmsg")


class Ack(NamedTuple):
    """An acknowledgement on the wire: the client's port and the correlation id."""

    port: int
    correlation: int


@dataclass(frozen=True)
class Trace:
    """A run: the calls of the spool's directory in the order in which they begin, the push of each acknowledgement, and
    where its row is. `lines`: of the log."""

    spool: Path
    spool_calls: Sequence[Call]
    lines: int
    pushed: dict[Ack, int]  # the number in the push
    acknowledged: dict[int, int]  # number -> the line at which its response was sent
    stored: dict[int, int]  # number -> the line from which on its row is durable
    freed: int  # segments that were freed or overwritten


class Loss(NamedTuple):
    """One power loss: the acknowledged pushes and the missing ones. `in_spool`: how many were read from the spool.
    `only_stored`: how many exist only as durable rows. `without_sync`: how many would be missing if the network process
    did not sync, which shows that the check can fail."""

    acknowledged: int
    in_spool: int
    only_stored: int
    missing: set[int]
    without_sync: int


def traced(directory: Path, seconds: float, *, fsync: str = "each") -> Trace:
    """Runs the sink for `seconds`. Segments are small, so that they are freed and overwritten."""
    of_spool = {"fsync": fsync, "sync_ms": 3_600_000, "segment_bytes": 8192, "max_bytes": 1 << 20}
    config = config_file(directory, push_ms=_EVERY_MS, spool=of_spool, store={"batch_ms": 300})
    log = directory / "strace.log"
    served = Served(directory, *config)
    served.argv = [*COMMAND, "-o", str(log), *served.argv]
    with served:
        sql_port = int(served.sql.rpartition(":")[2])
        stop_merges(sql_port)
        pushed = asyncio.run(_load(served.address, seconds))
        eventually(served.metrics, lambda found: found["headroom_records:written"] >= len(pushed))
        with connected(with_writer(Endpoint.parse(f"http://{LOOPBACK}:{sql_port}"))) as client:
            rows = client.query("SELECT toUInt64(value), _part FROM headroom.points").result_rows
            parts = client.query("SELECT name, path FROM system.parts WHERE table = 'points' AND active").result_rows
        assert served.stop() == 0
    size = -1
    while size != (size := log.stat().st_size):  # strace ends after the processes that it traces
        time.sleep(0.5)
    found = list(calls(log.read_text(encoding="ascii", errors="replace").splitlines()))
    durable = durable_parts(found)
    paths = {name: str(path).rstrip("/") for name, path in parts}
    stored = {int(number): durable[paths[part]] for number, part in rows if paths[part] in durable}
    spool = directory / "data" / "spool"
    spool_calls = calls_of(str(spool), found)
    freed = sum(call.name.startswith(("rename", "unlink")) and ".spool" in call.paths[0] for call in spool_calls)
    return Trace(spool, spool_calls, found[-1].end + 1, pushed, _responses(found, pushed), stored, freed)


async def _load(address: tuple[str, int], seconds: float) -> dict[Ack, int]:
    """The pushes that were acknowledged to the clients."""
    pushed: dict[Ack, int] = {}
    end = time.monotonic() + seconds
    await asyncio.gather(*(_client(address, n, end, pushed) for n in range(CLIENTS)))
    return pushed


async def _client(address: tuple[str, int], number: int, end: float, pushed: dict[Ack, int]) -> None:
    client = await WireClient.connect(*address, f"powerloss-{number}")
    subscription = await client.subscription(bytes(16))
    value = number << 32
    while time.monotonic() < end:
        value += 1
        if await client.push(subscription, 0, metrics_data([value], time.time_ns(), b"x" * 100)) == 0:
            pushed[Ack(client.port, client.correlation)] = value
        await asyncio.sleep(_EVERY_MS / 1000 * 1.1)
    client.close()


def _responses(found: Iterable[Call], pushed: dict[Ack, int]) -> dict[int, int]:
    """The line at which the response to each acknowledged push starts to be sent."""
    sent: dict[int, int] = {}
    for call in found:
        if call.name not in _SOCKET_WRITES or not call.opened_as.startswith("TCP:"):
            continue
        port = call.opened_as.rstrip("]").rpartition(":")[2]
        if not port.isdecimal():
            continue
        data, at = b"".join(call.strings), 0
        while at + 8 <= len(data):
            size, correlation = struct.unpack_from(">ii", data, at)
            number = pushed.get(Ack(int(port), correlation))
            if number is not None:
                sent[number] = call.begin
            at += 4 + max(size, 0)
    return sent


def lose_power(trace: Trace, cut: int, rng: random.Random) -> Loss:
    """A power loss at line `cut` of the log."""
    acknowledged = {number for number, at in trace.acknowledged.items() if at < cut}
    stored = {number for number, at in trace.stored.items() if at < cut}
    without_sync = [call for call in trace.spool_calls if call.name != "fdatasync"]
    in_spool, in_unsynced_spool = (
        read_spool(fed(str(trace.spool), calls_, cut).after_loss(rng)) for calls_ in (trace.spool_calls, without_sync)
    )
    gone = acknowledged - in_spool
    missing_without_sync = len(acknowledged - in_unsynced_spool - stored)
    return Loss(len(acknowledged), len(in_spool), len(gone & stored), gone - stored, missing_without_sync)


def read_spool(files: dict[str, bytes]) -> set[int]:
    """The pushes that the reader yields after a restart."""
    found = set()
    with tempfile.TemporaryDirectory(prefix="headroom-powerloss-") as directory:
        for name, content in files.items():
            (Path(directory) / name).write_bytes(content)
        with closing(SpoolReader(Path(directory))) as reader:
            while (batch := reader.next_batch(1000, 1 << 20)) is not None:
                reader.begin(batch)
                for body in (body for kind, body in batch.records if kind == RecordKind.PUSH):
                    data = MetricsData.FromString(decode_push(body).payload)
                    found.add(int(data.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points[0].as_double))
                reader.commit(batch, note={})
    return found
