"""The spool loses nothing that was flushed, returns nothing twice that was committed, and never gets stuck."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporters.model import RecordKind
from exporters.spool import reader as spool_reader
from exporters.spool import writer as spool_writer
from exporters.spool.reader import SpoolReader
from exporters.spool.segment_format import FRAME, Record, read_name, scan, segment_name
from exporters.spool.writer import SpoolFull, SpoolWriter

MIB = 1 << 20
RECORDS = st.lists(st.tuples(st.sampled_from(RecordKind), st.binary(max_size=60)), min_size=1, max_size=25)


def writer(directory: Path, name: str = "gw0", *, segment_bytes: int = MIB, max_bytes: int = 64 * MIB) -> SpoolWriter:
    return SpoolWriter(directory, name, segment_bytes=segment_bytes, max_bytes=max_bytes)


def write(directory: Path, records: list[Record], *, segment_bytes: int = MIB, name: str = "gw0") -> None:
    spool = writer(directory, name, segment_bytes=segment_bytes)
    for kind, body in records:
        spool.append(kind, body)
        spool.flush()
    spool.close()


def drain(reader: SpoolReader, *, max_records: int = 1000, max_bytes: int = MIB) -> list[Record]:
    records: list[Record] = []
    while (batch := reader.next_batch(max_records, max_bytes)) is not None:
        reader.begin(batch)
        records += batch.records
        reader.commit(batch)
    return records


def read_all(directory: Path) -> list[Record]:
    reader = SpoolReader(directory)
    try:
        return drain(reader)
    finally:
        reader.close()


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.spool"))


@contextmanager
def largest_file(nbytes: int) -> Iterator[None]:
    """As if the disk were full: writes beyond `nbytes` in a file come short, then fail."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


@given(
    records=RECORDS, segment_bytes=st.integers(1, 300), max_records=st.integers(1, 10), max_bytes=st.integers(1, 200)
)
@settings(max_examples=60, deadline=None)
def test_what_was_written_is_read_in_order(
    records: list[Record], segment_bytes: int, max_records: int, max_bytes: int
) -> None:
    with TemporaryDirectory() as name:
        directory = Path(name)
        write(directory, records, segment_bytes=segment_bytes)
        reader = SpoolReader(directory)
        assert drain(reader, max_records=max_records, max_bytes=max_bytes) == records
        assert reader.totals.records == len(records)
        assert reader.totals.corrupt == 0
        assert segments(directory) == []
        reader.close()


@given(records=RECORDS, cut=st.integers(0, 10_000), later=RECORDS)
@settings(max_examples=80, deadline=None)
def test_a_segment_cut_anywhere_gives_a_prefix_and_then_the_later_segments(
    records: list[Record], cut: int, later: list[Record]
) -> None:
    with TemporaryDirectory() as name:
        directory = Path(name)
        write(directory, records)
        torn = segments(directory)[0]
        cut = min(cut, torn.stat().st_size)
        os.truncate(torn, cut)
        write(directory, later)
        read = read_all(directory)
        prefix = read[: len(read) - len(later)]
        assert read[len(prefix) :] == later
        assert prefix == records[: len(prefix)]
        assert sum(FRAME.size + len(body) for _, body in records[: len(prefix) + 1]) > cut or prefix == records
        assert segments(directory) == []


@given(records=RECORDS, at=st.integers(0, 10_000), flip=st.integers(1, 255))
@settings(max_examples=80, deadline=None)
def test_a_flipped_byte_costs_one_record_and_is_counted(records: list[Record], at: int, flip: int) -> None:
    with TemporaryDirectory() as name:
        directory = Path(name)
        write(directory, records)
        [path] = segments(directory)
        data = bytearray(path.read_bytes())
        at %= len(data)
        data[at] ^= flip
        path.write_bytes(data)
        reader = SpoolReader(directory)
        read = drain(reader)
        ends = [sum(FRAME.size + len(body) for _, body in records[: n + 1]) for n in range(len(records))]
        hit = next(n for n, end in enumerate(ends) if at < end)
        assert read == records[:hit] + records[hit + 1 :]
        # At the very end it looks like a record that was not written to its end.
        assert (reader.totals.corrupt, reader.totals.torn) == ((0, 1) if hit == len(records) - 1 else (1, 0))
        assert segments(directory) == []
        reader.close()


@given(
    records=RECORDS,
    crashes=st.lists(st.sampled_from(["begun", "stored", "committed", "none"]), max_size=30),
    max_records=st.integers(1, 6),
    segment_bytes=st.integers(1, 400),
)
@settings(max_examples=80, deadline=None)
def test_with_tokens_each_record_counts_once_wherever_the_reader_crashes(
    records: list[Record], crashes: list[str], max_records: int, segment_bytes: int
) -> None:
    with TemporaryDirectory() as name:
        directory = Path(name)
        write(directory, records, segment_bytes=segment_bytes)
        stored: dict[str, list[Record]] = {}
        reader = SpoolReader(directory)
        script = iter(crashes)
        while (batch := reader.next_batch(max_records, MIB)) is not None:
            crash = next(script, "none")
            reader.begin(batch)
            if crash != "begun":
                assert stored.setdefault(batch.token, batch.records) == batch.records
                if crash != "stored":
                    reader.commit(batch)
            if crash != "none":
                reader.close()
                reader = SpoolReader(directory)
                max_records = max_records % 6 + 1  # a restart may come with other limits
        reader.close()
        assert [record for part in stored.values() for record in part] == records


def test_records_are_read_while_the_writer_goes_on(tmp_path: Path) -> None:
    spool, reader = writer(tmp_path), SpoolReader(tmp_path)
    spool.append(RecordKind.PUSH, b"one-two")
    assert drain(reader) == []
    spool.flush()
    assert drain(reader) == [(RecordKind.PUSH, b"one-two")]
    spool.append(RecordKind.USAGE, b"three")
    spool.flush()
    assert drain(reader) == [(RecordKind.USAGE, b"three")]
    assert len(segments(tmp_path)) == 1  # it is still being written
    spool.close()
    assert drain(reader) == []
    assert segments(tmp_path) == []
    reader.close()


def test_the_half_written_tail_of_a_live_writer_is_not_yet_there(tmp_path: Path) -> None:
    spool, reader = writer(tmp_path), SpoolReader(tmp_path)
    spool.append(RecordKind.PUSH, b"whole")
    spool.append(RecordKind.PUSH, b"half")
    spool.flush()
    [path] = segments(tmp_path)
    whole = path.read_bytes()
    os.truncate(path, len(whole) - 2)
    assert drain(reader) == [(RecordKind.PUSH, b"whole")]
    assert drain(reader) == []
    path.open("ab").write(whole[-2:])
    assert drain(reader) == [(RecordKind.PUSH, b"half")]
    assert reader.totals.corrupt == 0
    spool.close()
    reader.close()


def test_a_body_cannot_pass_for_a_record(tmp_path: Path) -> None:
    """What a client sends may hold a frame with a right checksum; a torn record must not set it free."""
    write(tmp_path, [(RecordKind.PUSH, b"")])
    forged = segments(tmp_path)[0].read_bytes()  # a sound frame, but of another writer
    write(tmp_path, [(RecordKind.PUSH, forged + b"rest"), (RecordKind.PUSH, b"next")], name="gw1")
    torn = segments(tmp_path)[1]
    data = bytearray(torn.read_bytes())
    data[5] ^= 0xFF  # the first record's length
    torn.write_bytes(data)
    assert read_all(tmp_path) == [(RecordKind.PUSH, b""), (RecordKind.PUSH, b"next")]


def test_segments_of_several_writers_take_turns(tmp_path: Path) -> None:
    first, second = writer(tmp_path, "gw0"), writer(tmp_path, "gw1")
    for spool, body in ((first, b"a"), (second, b"b")):
        for _ in range(4):
            spool.append(RecordKind.PUSH, body)
        spool.flush()
    reader = SpoolReader(tmp_path)
    assert [body for _, body in drain(reader, max_records=2)] == [b"a", b"a", b"b", b"b"] * 2
    first.close()
    second.close()
    reader.close()


def test_a_restarted_writer_begins_a_new_segment(tmp_path: Path) -> None:
    write(tmp_path, [(RecordKind.PUSH, b"before")])
    write(tmp_path, [(RecordKind.PUSH, b"after")])
    assert len(segments(tmp_path)) == 2
    assert read_all(tmp_path) == [(RecordKind.PUSH, b"before"), (RecordKind.PUSH, b"after")]


def test_a_full_spool_refuses_and_takes_again_once_read(tmp_path: Path) -> None:
    write(tmp_path, [(RecordKind.PUSH, bytes(500))], name="before")
    now = [0.0]
    spool = SpoolWriter(tmp_path, "gw0", segment_bytes=MIB, max_bytes=1100, clock_s=lambda: now[0])
    spool.append(RecordKind.PUSH, bytes(500))
    with pytest.raises(SpoolFull):
        spool.append(RecordKind.PUSH, bytes(100))
    spool.append(RecordKind.PUSH, b"small enough")
    spool.flush()
    assert len(read_all(tmp_path)) == 3  # deletes the segment of the writer that went
    with pytest.raises(SpoolFull):
        spool.append(RecordKind.PUSH, bytes(300))
    now[0] = 0.06  # a full spool looks at the disk again after 50 ms
    spool.append(RecordKind.PUSH, bytes(300))
    spool.close()
    assert read_all(tmp_path) == [(RecordKind.PUSH, bytes(300))]


def test_a_writer_that_is_killed_loses_only_what_it_never_flushed(tmp_path: Path) -> None:
    script = """
import os, signal, sys
from pathlib import Path
from exporters.model import RecordKind
from exporters.spool.writer import SpoolWriter
spool = SpoolWriter(Path(sys.argv[1]), "gw0", segment_bytes=1 << 20, max_bytes=1 << 20)
for n in range(100):
    spool.append(RecordKind.PUSH, b"acknowledged")
spool.flush()
spool.append(RecordKind.PUSH, b"never flushed")
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert read_all(tmp_path) == [(RecordKind.PUSH, b"acknowledged")] * 100
    assert segments(tmp_path) == []


def test_a_failed_flush_counts_nothing_and_the_next_works(tmp_path: Path) -> None:
    spool = writer(tmp_path)
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


def test_a_directory_that_could_not_be_synced_is_synced_by_the_next_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []

    def fail_once(directory: Path) -> None:
        synced.append(directory)
        if len(synced) == 1:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(spool_writer, "sync_directory", fail_once)
    spool = writer(tmp_path)
    spool.append(RecordKind.PUSH, b"")
    spool.flush()
    with pytest.raises(OSError, match="Input/output"):
        spool.sync()
    spool.sync()
    spool.sync()
    assert synced == [tmp_path, tmp_path]
    spool.close()


class Hurried(SpoolWriter):
    """Its segment is full as soon as `sync` has looked at it."""

    hurry = False

    @property
    def _fd(self) -> int:
        current: int = self.__dict__["fd"]
        if self.hurry and current >= 0:
            self.hurry = False
            self._retire()
        return current

    @_fd.setter
    def _fd(self, fd: int) -> None:
        self.__dict__["fd"] = fd


def test_a_segment_that_is_full_while_it_is_synced_is_synced(tmp_path: Path) -> None:
    spool = Hurried(tmp_path, "gw0", segment_bytes=MIB, max_bytes=64 * MIB)
    spool.append(RecordKind.PUSH, b"record")
    spool.flush()
    spool.hurry = True
    spool.sync()
    assert not spool.hurry
    spool.close()
    assert read_all(tmp_path) == [(RecordKind.PUSH, b"record")]


def test_segments_whose_first_flush_fails_leave_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool, reader = writer(tmp_path), SpoolReader(tmp_path)
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
    spool.close()
    reader.close()


def test_a_segment_that_goes_between_being_listed_and_opened_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = SpoolReader(tmp_path)
    monkeypatch.setattr(spool_reader, "segment_sizes", lambda _: {segment_name(1, "gw0", 1): 5})
    assert reader.buffered() == (0, 0)
    assert reader.next_batch(1, MIB) is None
    reader.close()


def test_full_segments_are_released_by_sync_in_a_thread(tmp_path: Path) -> None:
    spool, reader = writer(tmp_path, segment_bytes=10), SpoolReader(tmp_path)
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
    reader.close()


def test_counts_are_differences_of_positions(tmp_path: Path) -> None:
    spool, reader = writer(tmp_path), SpoolReader(tmp_path)
    for _ in range(10):
        spool.append(RecordKind.PUSH, b"12345678")
    spool.flush()
    assert reader.buffered() == (10, spool.bytes)
    batch = reader.next_batch(3, MIB)
    assert batch is not None
    reader.begin(batch)
    assert reader.buffered() == (10, spool.bytes)
    reader.commit(batch)
    assert reader.buffered() == (7, spool.bytes - reader.totals.bytes)
    assert spool.records == reader.totals.records + 7
    spool.append(RecordKind.PUSH, b"")
    spool.flush()
    assert reader.buffered()[0] == 8
    drain(reader)
    assert reader.buffered() == (0, 0)
    spool.close()
    reader.close()


def test_totals_and_the_note_outlive_the_reader_with_the_positions(tmp_path: Path) -> None:
    spool, reader = writer(tmp_path), SpoolReader(tmp_path)
    for n in range(5):
        spool.append(RecordKind.PUSH, b"%d" % n)
    spool.flush()
    for number in (1, 2):
        batch = reader.next_batch(2, MIB)
        assert batch is not None
        reader.begin(batch)
        reader.commit(batch, {"batches": number})
    last = reader.next_batch(2, MIB)
    assert last is not None
    reader.begin(last)
    reader.close()  # as good as a crash
    later = SpoolReader(tmp_path)
    assert (later.totals.records, later.note) == (4, {"batches": 2})
    assert later.totals.bytes + later.buffered()[1] == spool.bytes
    replayed = later.next_batch(9, MIB)
    assert replayed == last
    later.commit(replayed, {"batches": 3})
    assert (later.totals.records, later.note) == (5, {"batches": 3})
    later.close()
    spool.close()


def test_a_commit_that_cannot_be_saved_counts_nothing(tmp_path: Path) -> None:
    write(tmp_path, [(RecordKind.PUSH, b"record")])
    reader = SpoolReader(tmp_path)
    batch = reader.next_batch(1, MIB)
    assert batch is not None
    reader.begin(batch)
    with largest_file(10), pytest.raises(OSError, match="File too large"):
        reader.commit(batch, {"batches": 1})
    assert (reader.totals.records, reader.note, reader.next_batch(1, MIB)) == (0, {}, batch)
    reader.commit(batch, {"batches": 1})
    assert (reader.totals.records, reader.note, reader.next_batch(1, MIB)) == (1, {"batches": 1}, None)
    reader.close()


def test_records_larger_than_what_is_read_at_once_are_counted(tmp_path: Path) -> None:
    spool, reader = writer(tmp_path), SpoolReader(tmp_path)
    for size in (10, 300_000, 0, 250_000, 270_000, 20_000, 5):
        spool.append(RecordKind.PUSH, bytes(size))
    spool.flush()
    assert reader.buffered() == (7, spool.bytes)
    for _ in range(3):
        spool.append(RecordKind.PUSH, b"")
    spool.flush()
    assert reader.buffered() == (10, spool.bytes)
    spool.close()
    reader.close()


def test_one_reader_at_a_time(tmp_path: Path) -> None:
    reader = SpoolReader(tmp_path)
    with pytest.raises(BlockingIOError):
        SpoolReader(tmp_path)
    reader.close()
    SpoolReader(tmp_path).close()


def test_unreadable_positions_and_foreign_files_do_not_stop_the_reader(tmp_path: Path) -> None:
    write(tmp_path, [(RecordKind.PUSH, b"record")])
    (tmp_path / "positions.json").write_bytes(b'{"positions": ')
    (tmp_path / "foreign.spool").write_bytes(b"?")
    assert read_all(tmp_path) == [(RecordKind.PUSH, b"record")]


def test_a_begun_batch_whose_records_the_power_took_is_let_go(tmp_path: Path) -> None:
    write(tmp_path, [(RecordKind.PUSH, b"lost")])
    reader = SpoolReader(tmp_path)
    batch = reader.next_batch(1, MIB)
    assert batch is not None
    reader.begin(batch)
    reader.close()
    os.truncate(segments(tmp_path)[0], 5)
    write(tmp_path, [(RecordKind.PUSH, b"kept")])
    assert read_all(tmp_path) == [(RecordKind.PUSH, b"kept")]


def test_names() -> None:
    assert read_name(segment_name(17, "gateway.1", 0xABC)) == ("gateway.1", 0xABC, False)
    assert read_name(segment_name(17, "gateway.1", 0xABC, reused=True)) == ("gateway.1", 0xABC, True)
    assert segment_name(9, "b", 1) < segment_name(10, "a", 0)
    assert read_name("positions.json") is None
    with pytest.raises(ValueError, match="cannot name a segment"):
        segment_name(1, "../x", 1)


@given(data=st.binary(max_size=400), mark=st.integers(0, 3))
def test_junk_is_scanned_without_error(data: bytes, mark: int) -> None:
    found = scan(mark.to_bytes(4) + data, mark, 10)
    assert 0 <= found.end <= len(data) + 4
