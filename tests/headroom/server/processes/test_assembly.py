"""headroom/server/processes/assembly.py: when pushes are made to survive a power loss."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from exporters.model import RecordKind
from exporters.spool.writer import SpoolWriter
from headroom.config.settings import ServeConfig, SpoolConfig
from headroom.server.processes.assembly import push_flush, push_sync_tasks


@pytest.mark.parametrize(("fsync", "synced"), [("each", True), ("interval", False)])
def test_with_fsync_each_what_is_flushed_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: str, synced: bool
) -> None:
    on_disk: list[int] = []
    monkeypatch.setattr(os, "fdatasync", lambda fd: on_disk.append(os.fstat(fd).st_size))
    config = ServeConfig(spool=SpoolConfig(fsync=fsync))  # type: ignore[arg-type] # one of its two values
    spool = SpoolWriter(tmp_path, "pushes", segment_bytes=100, max_bytes=1 << 20)
    flush = push_flush(spool, config)
    for _ in range(3):  # each in a segment of its own
        spool.append(RecordKind.PUSH, bytes(100))
        before = len(on_disk)
        flush()
        assert (len(on_disk) > before) == synced
        assert all(size > 100 for size in on_disk)
    assert len(push_sync_tasks(spool, config)) == (not synced)
    spool.close()


def test_a_sync_that_fails_is_a_flush_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(fd: int) -> None:
        raise OSError(5, "Input/output error")

    spool = SpoolWriter(tmp_path, "pushes", segment_bytes=1000, max_bytes=1 << 20)
    flush = push_flush(spool, ServeConfig(spool=SpoolConfig(fsync="each")))
    spool.append(RecordKind.PUSH, b"a push")
    with monkeypatch.context() as context:
        context.setattr(os, "fdatasync", broken)
        with pytest.raises(OSError, match="Input/output"):
            flush()
    spool.close()
