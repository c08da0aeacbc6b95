"""The writing side: bounded, and a failed flush or sync loses nothing that was acknowledged."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from exporters.model import RecordKind
from exporters.spool import writer as spool_writer
from exporters.spool.reader import SpoolReader
from exporters.spool.writer import SpoolFull, SpoolWriter
from tests.exporters.spool.kit import MIB, drain, largest_file, read_all, segments, write, writer


def test_full_spool_refuses_until_it_is_read(tmp_path: Path) -> None:
    write(tmp_path, [(RecordKind.PUSH, bytes(500))], name="before")
    now = [0.0]
    spool = SpoolWriter(tmp_path, "gw0", segment_bytes=MIB, max_bytes=1100, clock_s=lambda: now[0])
    spool.append(RecordKind.PUSH, bytes(500))
    with pytest.raises(SpoolFull):
        spool.append(RecordKind.PUSH, bytes(100))
    spool.append(RecordKind.PUSH, b"small enough")
    spool.flush()
    assert len(read_all(tmp_path)) == 3  # deletes the segment of the closed writer
    with pytest.raises(SpoolFull):
        spool.append(RecordKind.PUSH, bytes(300))
    now[0] = 0.06  # a full spool checks the disk again after 50 ms
    spool.append(RecordKind.PUSH, bytes(300))
    spool.close()
    assert read_all(tmp_path) == [(RecordKind.PUSH, bytes(300))]


def test_failed_flush_counts_nothing_and_the_next_one_succeeds(tmp_path: Path, spool: SpoolWriter) -> None:
    spool.append(RecordKind.PUSH, b"acknowledged")
    spool.flush()
    with largest_file(100):
        spool.append(RecordKind.PUSH, b"x")
        spool.append(RecordKind.PUSH, bytes(200))
        with pytest.raises(OSError, match="File too large"):
            spool.flush()
        spool.append(RecordKind.PUSH, bytes(200))
        with pytest.raises(OSError, match="File too large"):
            spool.flush()
    spool.append(RecordKind.PUSH, b"also")
    spool.flush()
    assert spool.records == 2
    spool.close()
    assert len(segments(tmp_path)) == 2
    assert read_all(tmp_path) == [(RecordKind.PUSH, b"acknowledged"), (RecordKind.PUSH, b"also")]


@pytest.mark.interpreted
def test_failed_directory_sync_is_retried_by_the_next_sync(
    tmp_path: Path, spool: SpoolWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []

    def fail_once(directory: Path) -> None:
        synced.append(directory)
        if len(synced) == 1:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(spool_writer, "sync_directory", fail_once)
    spool.append(RecordKind.PUSH, b"")
    spool.flush()
    with pytest.raises(OSError, match="Input/output"):
        spool.sync()
    spool.sync()
    spool.sync()
    assert synced == [tmp_path, tmp_path]


def test_failed_first_flush_leaks_no_file_descriptors(
    spool: SpoolWriter, reader: SpoolReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    def look_and_fail(*_: object) -> int:
        reader.buffered()
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "write", look_and_fail)
        for _ in range(3):
            spool.append(RecordKind.PUSH, b"never acknowledged")
            with pytest.raises(OSError, match="No space left"):
                spool.flush()
    assert reader.next_batch(1, MIB) is None
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    spool.append(RecordKind.PUSH, b"acknowledged")
    spool.flush()
    assert drain(reader) == [(RecordKind.PUSH, b"acknowledged")]


def test_sync_releases_full_segments(tmp_path: Path, reader: SpoolReader) -> None:
    spool = writer(tmp_path, segment_bytes=10)
    for n in range(3):
        spool.append(RecordKind.PUSH, b"record %d" % n)
        spool.flush()
    assert len(drain(reader)) == 3
    assert len(segments(tmp_path)) == 3  # full, but not synced: the writer still holds them
    thread = threading.Thread(target=spool.sync)
    thread.start()
    thread.join()
    assert drain(reader) == []
    assert segments(tmp_path) == []
    spool.close()


def test_deleted_segment_is_noticed_and_replaced(tmp_path: Path) -> None:
    """By an operator who cleans up. What was in it is lost; nothing is acknowledged into it any more."""
    now = [0.0]
    spool = SpoolWriter(tmp_path, "gw0", segment_bytes=MIB, max_bytes=MIB, clock_s=lambda: now[0])
    spool.append(RecordKind.PUSH, b"lost")
    spool.flush()
    segments(tmp_path)[0].unlink()
    now[0] = 1.1  # the directory is read again after a second
    spool.append(RecordKind.PUSH, b"refused")
    with pytest.raises(FileNotFoundError, match="deleted by another program"):
        spool.flush()
    for _ in range(2):
        now[0] += 1.1
        spool.append(RecordKind.PUSH, b"kept")
        spool.flush()
    spool.close()
    assert read_all(tmp_path) == [(RecordKind.PUSH, b"kept")] * 2
    assert spool.records == 3


@pytest.mark.parametrize(("flooding", "other"), [("pushes.1", "quotas"), ("quotas", "pushes")])
def test_neither_pushes_nor_usage_can_push_the_other_out(tmp_path: Path, flooding: str, other: str) -> None:
    flood = writer(tmp_path, flooding, max_bytes=10_000)
    quiet = writer(tmp_path, other, max_bytes=10_000)
    with pytest.raises(SpoolFull):
        while True:
            flood.append(RecordKind.PUSH, bytes(1_000))
            flood.flush()
    quiet.reserve(8_000, 1)
    quiet.append(RecordKind.USAGE, bytes(8_000))
    quiet.flush()
    beside = writer(tmp_path, "quotas" if flooding == "quotas" else "pushes", max_bytes=10_000)
    with pytest.raises(SpoolFull):
        beside.append(RecordKind.PUSH, bytes(1_000))
    for spool in (flood, quiet, beside):
        spool.close()
