"""Overwritten segments return none of their old records and lose no new ones."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporters.model import RecordKind
from exporters.spool.reader import FollowedSegment, SpoolReader
from exporters.spool.records import CRC_OF_KIND, FRAME, read_name
from exporters.spool.writer import SpoolWriter
from tests.exporters.spool.conftest import drain

SEGMENT_BYTES = 1000


class Spool:
    """A writer that can die, and a reader, in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.writer = self._writer()
        self.reader = SpoolReader(directory)
        self.flushed: list[bytes] = []
        self.read: list[bytes] = []
        self.number = 0

    def _writer(self) -> SpoolWriter:
        return SpoolWriter(self.directory, "gw0", segment_bytes=SEGMENT_BYTES, max_bytes=1 << 20)

    def write(self, *sizes: int) -> None:
        for size in sizes:
            self.number += 1
            body = self.number.to_bytes(4, "big") + b"x" * size
            self.writer.append(RecordKind.PUSH, body)
            self.flushed.append(body)
        self.writer.flush()

    def sync(self) -> None:
        self.writer.sync()

    def drain(self) -> None:
        self.read += [body for _, body in drain(self.reader)]

    def step(self) -> None:
        """One small batch."""
        batch = self.reader.next_batch(2, 300)
        if batch is not None:
            self.reader.begin(batch)
            self.read += [body for _, body in batch.records]
            self.reader.commit(batch)

    def die(self, torn: int = 0) -> None:
        """Simulates kill -9: nothing is truncated, and `torn` bytes of a record follow the last one."""
        if self.writer._fd >= 0:
            body = b"never acknowledged"
            head = FRAME.pack(self.writer._mark, len(body), CRC_OF_KIND[RecordKind.PUSH], RecordKind.PUSH)
            os.write(self.writer._fd, (head + body)[:torn])
            os.close(self.writer._fd)
            self.writer._fd = -1
        for fd in self.writer._retired:
            os.close(fd)
        self.writer._retired.clear()
        self.writer = self._writer()

    def restart_reader(self) -> None:
        self.reader.close()
        self.reader = SpoolReader(self.directory)

    def close(self) -> None:
        self.writer.close()
        self.reader.close()

    def reused(self) -> list[str]:
        named = {path.name: read_name(path.name) for path in self.directory.glob("*.spool")}
        return [name for name, segment in named.items() if segment and segment.reused]


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    with closing(Spool(tmp_path)) as opened:
        yield opened


@pytest.fixture
def filled(tmp_path: Path, spool: Spool) -> Spool:
    """With a full, committed segment, and a file to overwrite."""
    spool.write(400, 400, 400)
    spool.sync()
    spool.drain()
    assert [path.suffix for path in tmp_path.iterdir() if not path.name.startswith("positions.")] == [".free"]
    return spool


def test_reused_segment_returns_no_old_records(tmp_path: Path, filled: Spool) -> None:
    (inode,) = (path.stat().st_ino for path in tmp_path.glob("*.free"))
    filled.write(100)
    (name,) = filled.reused()
    assert (tmp_path / name).stat().st_ino == inode
    assert filled.reader.buffered() == (1, FRAME.size + 104)
    filled.writer.close()
    assert (tmp_path / name).stat().st_size == FRAME.size + 104
    filled.drain()
    assert filled.read == filled.flushed
    assert (filled.reader.totals.torn, filled.reader.totals.corrupt) == (0, 0)


@pytest.mark.parametrize(("nbytes", "torn"), [(0, 0), (FRAME.size + 5, 1)])
def test_partial_record_over_stale_bytes_is_torn_and_they_alone_are_not(filled: Spool, nbytes: int, torn: int) -> None:
    filled.write(100)
    filled.die(nbytes)
    filled.restart_reader()
    filled.drain()
    assert filled.read == filled.flushed
    assert filled.reader.totals.torn == torn
    assert filled.reused() == []


def test_free_segments_are_limited(tmp_path: Path, spool: Spool) -> None:
    for _ in range(8):
        spool.write(600, 600)
    spool.sync()
    spool.drain()
    assert len(list(tmp_path.glob("*.free"))) == 4
    assert list(tmp_path.glob("*.spool")) == []


def test_segment_that_cannot_be_freed_is_not_reread_and_is_freed_later(
    tmp_path: Path, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool.write(400)
    spool.step()  # a part of the segment, under a token of its own
    spool.write(400, 400)
    spool.sync()
    with monkeypatch.context() as away:
        away.setattr(Path, "rename", rename_none_to_free)
        spool.drain()
        spool.write(10)
        spool.step()  # saves positions without that segment open
        assert spool.read == spool.flushed
        spool.restart_reader()
        spool.drain()
        assert spool.reader.buffered() == (0, 0)
        assert spool.read == spool.flushed
    assert spool.reader.totals.records == len(spool.flushed)
    assert len(list(tmp_path.glob("*.spool"))) == 2
    spool.drain()
    assert len(list(tmp_path.glob("*.spool"))) == 1
    assert len(list(tmp_path.glob("*.free"))) == 1


def rename_none_to_free(path: Path, target: Path) -> Path:
    if target.suffix == ".free":
        raise OSError(errno.EIO, "Input/output error")
    os.rename(path, target)  # noqa: PTH104 - Path's own is replaced
    return target


def test_unopenable_free_segment_is_deleted(tmp_path: Path, filled: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as short_of_files:
        short_of_files.setattr(os, "open", fail)
        filled.writer.append(RecordKind.PUSH, b"never acknowledged")
        with pytest.raises(OSError, match="Too many open files"):
            filled.writer.flush()
    filled.write(10)
    assert {path.suffix for path in tmp_path.iterdir()} == {".0", ".1", ".spool"}
    filled.drain()
    assert filled.read == filled.flushed


def fail(*_: object) -> int:
    raise OSError(errno.EMFILE, "Too many open files")


def test_records_written_during_counting_are_counted(filled: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    filled.write(10, 20, 30, 40)
    read, reads = FollowedSegment.read, list[int]()

    def torn_once(self: FollowedSegment, nbytes: int, start: int) -> bytes:
        """The last record reached the disk and those before it did not."""
        reads.append(start)
        data = bytearray(read(self, nbytes, start))
        if len(reads) == 1:
            middle = slice(FRAME.size + 14, 3 * FRAME.size + 72)
            data[middle] = b"x" * (middle.stop - middle.start)
        return bytes(data)

    monkeypatch.setattr(FollowedSegment, "read", torn_once)
    assert filled.reader.buffered() == (4, 4 * FRAME.size + 116)
    filled.step()
    assert filled.reader.buffered()[0] == 2
    filled.drain()
    assert filled.reader.buffered() == (0, 0)
    assert (filled.read, filled.reader.totals.corrupt) == (filled.flushed, 0)


@pytest.mark.parametrize("max_segments", [4, 16, 64])
def test_empty_spool_is_never_full_with_many_writers(tmp_path: Path, max_segments: int) -> None:
    now = [0.0]
    limit = max_segments * SEGMENT_BYTES
    writers = [
        SpoolWriter(tmp_path, f"gw{n}", segment_bytes=SEGMENT_BYTES, max_bytes=limit, clock_s=lambda: now[0])
        for n in range(30)
    ]
    reader = SpoolReader(tmp_path)
    for number in range(3):
        for writer in writers:
            now[0] += 2
            if number == 0:
                writer.append(RecordKind.PUSH, bytes(SEGMENT_BYTES - FRAME.size))
                writer.flush()
                writer.sync()
            drain(reader)
            writer.append(RecordKind.PUSH, b"small")
            writer.flush()
            drain(reader)
    assert reader.buffered() == (0, 0)
    reused = [path for path in tmp_path.iterdir() if (named := read_name(path.name)) and named.reused]
    assert len(reused) == (0 if max_segments < 16 else max_segments // 4)
    for writer in writers:
        writer.close()
    reader.close()


STEPS: dict[str, Callable[[Spool], None]] = {
    "small": lambda spool: spool.write(10),
    "some": lambda spool: spool.write(200, 0, 300),
    "large": lambda spool: spool.write(1500),
    "sync": Spool.sync,
    "drain": Spool.drain,
    "step": Spool.step,
    "die": Spool.die,
    "die torn": lambda spool: spool.die(torn=20),
    "reader": Spool.restart_reader,
}


@settings(max_examples=80)
@given(st.lists(st.sampled_from(sorted(STEPS)), max_size=60))
def test_flushed_records_are_read_once_in_order_after_random_steps(steps: list[str]) -> None:
    with TemporaryDirectory() as directory:
        spool = Spool(Path(directory))
        for step in steps:
            STEPS[step](spool)
            waiting, _ = spool.reader.buffered()
            assert waiting == len(spool.flushed) - len(spool.read)
        spool.writer.close()
        spool.drain()
        assert spool.read == spool.flushed
        assert spool.reader.totals.corrupt == 0
        assert spool.reader.buffered() == (0, 0)
        spool.close()
