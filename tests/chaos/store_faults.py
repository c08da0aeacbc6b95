"""Faults under load: disk full, server suspended, killed or refusing rows, worker killed or suspended, no descriptors.

Every acknowledged point must be stored once or be in a quarantined push; after `headroom quarantine replay` it must be
stored.
"""

import asyncio
import contextlib
import os
import random
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from telemetry.decode.bounds import decompress
from telemetry.ingest.quarantine import held
from tests.chaos.audit import Audit, audit, command, rested
from tests.chaos.load import Load
from tests.chaos.scenario import (
    CLIENTS,
    before_server,
    concluded,
    kill,
    kill_server,
    kill_worker,
    loaded,
    suspend,
    until,
)
from tests.chaos.victim import Headroom, Server, signal_process

_RECEIVED = "headroom_records_received_total"
_DISK_BYTES = 512 << 20
_MAX_PAYLOAD_BYTES = 1 << 24
_REFUSE = "ALTER TABLE headroom.points ADD CONSTRAINT IF NOT EXISTS chaos CHECK value % 401 != 0"
_ACCEPT = "ALTER TABLE headroom.points DROP CONSTRAINT IF EXISTS chaos"


async def store_faults(upstream: str, directory: Path, rng: random.Random, count: int) -> Audit:
    """Injects `count` faults, each kind equally often; audits the store after the replay."""
    with small_disk(directory / "server" / "store") as disk:
        async with before_server(upstream, directory, rng) as (headroom, server, load):
            faults: dict[str, Callable[[], Awaitable[None]]] = {
                "disk_full": lambda: fill(disk, server, rng),
                "rows_refused": lambda: refuse_rows(server, headroom, rng),
                "server_stopped": lambda: suspend(partial(signal_process, server.pid), rng.uniform(0.5, 5.0)),
                "server_killed": lambda: kill_server(server, headroom),
                "worker_killed": lambda: kill_worker(headroom),
                "worker_stopped": lambda: suspend(headroom.signal_worker, rng.uniform(0, 5.0)),
                "worker_without_descriptors": lambda: starve(headroom, "storage_process", rng),
                "network_without_descriptors": lambda: starve(headroom, "network_process", rng),
            }
            killed = await kill(faults, [*faults], rng, count)
            await until(lambda: headroom.metrics()["headroom_worker_up"] == 1, "a worker")
            found = await replayed(headroom, server, load, directory / "data", killed["rows_refused"])
            found.killed = killed
            return found


async def starve(headroom: Headroom, module: str, rng: random.Random) -> None:
    """A child can open no more files or connections for a while (EMFILE)."""
    named = f"headroom.server.processes.{module}"
    await until(lambda: headroom.child_pid(named) is not None, f"a {module}")
    with contextlib.suppress(psutil.NoSuchProcess):  # it may end by the fault before this one
        child = psutil.Process(headroom.child_pid(named))
        soft, hard = child.rlimit(psutil.RLIMIT_NOFILE)
        child.rlimit(psutil.RLIMIT_NOFILE, (child.num_fds(), hard))
        await asyncio.sleep(rng.uniform(0.5, 5.0))
        child.rlimit(psutil.RLIMIT_NOFILE, (soft, hard))


async def shared_disk(upstream: str, directory: Path, rng: random.Random, count: int) -> Audit:
    """Fills the disk of the spool and the managed store `count` times; clients are asked to retry meanwhile."""
    with small_disk(directory / "data") as disk:
        headroom = Headroom(upstream, directory, None)
        headroom.begin()
        try:
            await headroom.opened()
            load = await loaded(headroom, headroom.sql_port, rng)
            for _ in range(count):
                await asyncio.sleep(rng.uniform(0.5, 3.0))
                await _fill_disk(disk, rng.uniform(1.0, 6.0))
            return await concluded(headroom, headroom.sql_port, load, Counter(shared_disk_full=count))
        finally:
            headroom.stop()


async def _fill_disk(disk: Path, seconds: float) -> None:
    ballast = disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(1 << 20)):
            pass
    await asyncio.sleep(seconds)
    ballast.unlink()


async def fill(disk: Path, server: Server, rng: random.Random) -> None:
    """Fills the disk of the store, or makes writes fail as on a full disk. A failed write ends the server
    (write_guard.c)."""
    if os.path.ismount(disk):  # noqa: ASYNC240 - the test may wait
        await _fill_disk(disk, rng.uniform(1.0, 4.0))
    else:
        _, hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (1024, hard))
        await asyncio.sleep(rng.uniform(1.0, 4.0))
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (hard, hard))
    await server.start_if_dead()


async def refuse_rows(server: Server, headroom: Headroom, rng: random.Random) -> None:
    """One point in 401 violates a constraint of the table; the others of its batch do not.

    It lasts until a batch with refused pushes is processed: the worker may still be backing off after the previous
    fault (up to 5 s), and needs dozens of inserts to isolate the refused pushes of a batch.
    """
    before = await asyncio.to_thread(_refused, headroom)
    await asyncio.to_thread(command, server.port, _REFUSE)
    await asyncio.sleep(rng.uniform(1.0, 4.0))
    try:
        await until(lambda: _refused(headroom) > before, "pushes to be refused")
    finally:
        await asyncio.to_thread(command, server.port, _ACCEPT)


def _refused(headroom: Headroom) -> float:
    return headroom.metrics().get("headroom_dropped_total:refused", 0.0)


async def replayed(headroom: Headroom, server: Server, load: Load, data: Path, refusals: int) -> Audit:
    """Waits for the spool to drain, checks stored and quarantined points, then replays, audits and shuts down.
    `refusals`: how often rows were refused."""
    before = load.ledger.pushes
    await until(lambda: load.ledger.pushes > before + 10 * CLIENTS, "clients to come back")
    await load.stop()
    counts, is_at_rest = await rested(headroom)
    first = await asyncio.to_thread(audit, server.port, load.ledger.acknowledged, after_faults=True)
    quarantined: set[int] = set()
    for one in held(data / "quarantine"):
        push = one.push()
        pushed = MetricsData.FromString(decompress(push.compression_type, push.payload, max_bytes=_MAX_PAYLOAD_BYTES))
        for metric in pushed.resource_metrics[0].scope_metrics[0].metrics:
            quarantined |= {int(point.as_double) for point in metric.gauge.data_points}
    accounted = len(load.ledger.acknowledged & (first.values | quarantined))
    print(
        f"{counts} acknowledged={first.acknowledged} stored={first.stored} quarantined={len(quarantined)}"
        f" lost={first.acknowledged - accounted} doubled={first.doubled}"
    )
    waiting, before_replay = len([*held(data / "quarantine")]), headroom.metrics()[_RECEIVED]
    replay = [sys.executable, "-m", "headroom", "quarantine", "replay", "--data", str(data)]
    await asyncio.to_thread(subprocess.run, replay, check=True)
    # Metrics lag by a second: without this wait the audit may run before the replayed pushes or their rollups are
    # written.
    await until(lambda: headroom.metrics()[_RECEIVED] >= before_replay + waiting, "the replayed pushes to be read")
    counts_after, rests_again = await rested(headroom)
    final = await asyncio.to_thread(audit, server.port, load.ledger.acknowledged, after_faults=True)
    if refusals and not quarantined:
        final.faults.append("rows were refused and nothing is in quarantine")
    if first.acknowledged != accounted:
        final.faults.append(f"{first.acknowledged - accounted} points were neither stored nor in quarantine")
    if not (is_at_rest and rests_again):
        final.faults.append(f"the counts do not add up: {counts}; after the replay: {counts_after}")
    if status := headroom.stop():
        final.faults.append(f"headroom serve ended with {status}")
    return final


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[Path]:
    """A tmpfs if mounting is permitted, else a plain directory."""
    path.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", str(path)]
    is_mounted = os.geteuid() == 0 and subprocess.run(mount, check=False, capture_output=True).returncode == 0
    try:
        yield path
    finally:
        if is_mounted:
            subprocess.run(["umount", "-l", str(path)], check=False)
