"""headroom/server/processes/assembly.py: when pushes are synced to disk, and the clock of the rules."""

import asyncio
import os
import threading
import time
from pathlib import Path

import pytest

from exporters.model import Connection, RecordKind
from exporters.spool.writer import PushSpool, SpoolWriter
from headroom.clock import now_ms
from headroom.config.settings import ServeConfig, SpoolConfig
from headroom.config.sources import load
from headroom.server.processes import assembly
from headroom.server.processes.assembly import (
    ClusterView,
    admission_limits,
    listeners_of,
    push_flush,
    push_sync_tasks,
    sync_task,
    telemetry_receiver,
)
from telemetry.gateway.connection_limits import AddressGate
from telemetry.gateway.security.sasl_tokens import TokenOwners
from telemetry.subscriptions.kip714_rules import PushRequest
from telemetry.subscriptions.payer_budgets import Caller
from telemetry.wire.errors import ErrorCode
from tests.kit.grpc_servers import in_loop

HOUR_NS = 3_600 * 10**9


def push_spool(directory: Path, segment_bytes: int = 1000) -> PushSpool:
    return PushSpool(lambda name: SpoolWriter(directory, name, segment_bytes=segment_bytes, max_bytes=1 << 20), "gw")


@pytest.mark.parametrize(("fsync", "synced"), [("each", True), ("interval", False)])
def test_fsync_each_syncs_every_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: str, synced: bool
) -> None:
    on_disk: list[int] = []
    monkeypatch.setattr(os, "fdatasync", lambda fd: on_disk.append(os.fstat(fd).st_size))
    config = ServeConfig(spool=SpoolConfig(fsync=fsync))  # type: ignore[arg-type] # one of its two values
    spool = push_spool(tmp_path, 100)
    flush = push_flush(spool, config)
    for _ in range(3):  # each in a segment of its own
        spool.append(RecordKind.PUSH, bytes(100))
        before = len(on_disk)
        flush()
        assert (len(on_disk) > before) == synced
        assert all(size > 100 for size in on_disk)
    assert len(push_sync_tasks(spool, config)) == (not synced)
    spool.close()


def test_failed_sync_fails_the_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(fd: int) -> None:
        raise OSError(5, "Input/output error")

    spool = push_spool(tmp_path)
    flush = push_flush(spool, ServeConfig(spool=SpoolConfig(fsync="each")))
    spool.append(RecordKind.PUSH, bytes(100))
    monkeypatch.setattr(os, "fdatasync", broken)
    with pytest.raises(OSError, match="Input/output"):
        flush()
    monkeypatch.undo()
    spool.close()


@in_loop
async def test_spool_is_synced_while_all_common_threads_hang(tmp_path: Path) -> None:
    """A thread of the default executor would come free when a hanging store answers."""
    hanging = threading.Event()
    spool = push_spool(tmp_path)
    waiting = [asyncio.ensure_future(asyncio.to_thread(hanging.wait)) for _ in range(100)]
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(60):
            await sync_task(spool, ServeConfig()).step()
    finally:
        hanging.set()
        await asyncio.gather(*waiting)
    spool.close()


def test_other_endpoints_keep_their_ports_and_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "open_files", lambda: 2_000)
    config = load(None, {"otlp": {"grpc": "127.0.0.1:4317", "http": "127.0.0.1:4318", "max_connections": 100}})
    view = ClusterView(AddressGate(), TokenOwners(), lambda: None)
    [listener] = listeners_of(config, view)
    assert listener.ports.reserved == {4317, 4318, 8123, 9644}
    alone, beside = admission_limits(ServeConfig()), admission_limits(config)
    assert alone.max_connections == beside.max_connections + 200


@pytest.mark.parametrize("step_ns", [-HOUR_NS, HOUR_NS])
def test_wall_clock_step_does_not_affect_throttling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_ns: int
) -> None:
    """Only elapsed time counts: a client is served after its interval and refused before it ends."""
    wall, monotonic, passed_ns = time.time_ns(), time.monotonic_ns(), 0
    monkeypatch.setattr(time, "monotonic_ns", lambda: monotonic + passed_ns)
    monkeypatch.setattr(time, "time_ns", lambda: wall + passed_ns)
    spool = push_spool(tmp_path)
    receiver = telemetry_receiver(ServeConfig(), spool)
    receiver.rules.replace_all({"all": {"metrics": "*", "interval.ms": "60000"}}, now_ms())
    caller = Caller(Connection("c", "PLAINTEXT", "u", "127.0.0.1", 4, "java", "1", 0), "app", "1")
    instance = receiver.get(b"i" * 16, caller, now_ms()).instance
    assert instance is not None
    request = PushRequest(b"i" * 16, instance.subscription_id, False, 0, caller)
    assert receiver.push(request, b"x", now_ms()) is ErrorCode.NONE

    monkeypatch.setattr(time, "time_ns", lambda: wall + passed_ns + step_ns)
    assert receiver.push(request, b"x", now_ms()) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    passed_ns += 61 * 10**9
    assert receiver.push(request, b"x", now_ms()) is ErrorCode.NONE
    spool.close()
