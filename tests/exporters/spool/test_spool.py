"""The spool loses nothing that was flushed, returns nothing twice that was committed, and never gets stuck.

Then its writing side: bounded, and a failed flush or sync loses nothing that was acknowledged.
"""

import errno
import os
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporters.model import RecordKind
from exporters.spool import reader as spool_reader
from exporters.spool import writer as spool_writer
from exporters.spool.reader import SpoolReader
from exporters.spool.records import FRAME, Record, read_name, segment_name
from exporters.spool.writer import SpoolFull, SpoolWriter
from tests.exporters.spool.conftest import MIB, RECORDS, drain, largest_file, read_all, segments, write, writer


@given(
    records=RECORDS, segment_bytes=st.integers(1, 300), max_records=st.integers(1, 10), max_bytes=st.integers(1, 200)
)
def test_records_are_read_in_write_order(
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
def test_truncated_segment_yields_a_prefix_and_later_segments(
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
def test_flipped_byte_drops_one_record_and_is_counted(records: list[Record], at: int, flip: int) -> None:
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
        # Damage in the last record is indistinguishable from an unfinished write.
        assert (reader.totals.corrupt, reader.totals.torn) == ((0, 1) if hit == len(records) - 1 else (1, 0))
        assert segments(directory) == []
        reader.close()


@given(
    records=RECORDS,
    crashes=st.lists(st.sampled_from(["begun", "stored", "committed", "none"]), max_size=30),
    max_records=st.integers(1, 6),
    segment_bytes=st.integers(1, 400),
)
def test_records_are_stored_once_across_reader_crashes(
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
                max_records = max_records % 6 + 1  # limits may change with a restart
        reader.close()
        assert [record for part in stored.values() for record in part] == records


def test_records_are_read_while_the_writer_is_open(tmp_path: Path, spool: SpoolWriter, reader: SpoolReader) -> None:
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


def test_partial_record_of_an_open_segment_is_not_read(tmp_path: Path, spool: SpoolWriter, reader: SpoolReader) -> None:
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


def test_frame_inside_a_payload_is_not_a_record(tmp_path: Path) -> None:
    """A payload may contain a frame with a valid checksum; the reader must not find it in a torn record."""
    write(tmp_path, [(RecordKind.PUSH, b"")])
    forged = segments(tmp_path)[0].read_bytes()  # a valid frame, but of another writer
    write(tmp_path, [(RecordKind.PUSH, forged + b"rest"), (RecordKind.PUSH, b"next")], name="gw1")
    torn = segments(tmp_path)[1]
    data = bytearray(torn.read_bytes())
    data[5] ^= 0xFF  # the first record's length
    torn.write_bytes(data)
    assert read_all(tmp_path) == [(RecordKind.PUSH, b""), (RecordKind.PUSH, b"next")]


def test_segments_of_several_writers_are_read_alternately(tmp_path: Path, reader: SpoolReader) -> None:
    for name, body in (("gw0", b"a"), ("gw1", b"b")):
        write(tmp_path, [(RecordKind.PUSH, body)] * 4, name=name)
    assert [body for _, body in drain(reader, max_records=2)] == [b"a", b"a", b"b", b"b"] * 2


def test_segment_deleted_after_listing_is_skipped(reader: SpoolReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_reader, "segment_sizes", lambda _: {segment_name(1, "gw0", 1): 5})
    assert reader.buffered() == (0, 0)
    assert reader.next_batch(1, MIB) is None


def test_records_larger_than_the_read_size_are_counted(spool: SpoolWriter, reader: SpoolReader) -> None:
    for size in (10, 300_000, 0, 250_000, 270_000, 20_000, 5):
        spool.append(RecordKind.PUSH, bytes(size))
    spool.flush()
    assert reader.buffered() == (7, spool.bytes)
    for _ in range(3):
        spool.append(RecordKind.PUSH, b"")
    spool.flush()
    assert reader.buffered() == (10, spool.bytes)


def test_segment_names_round_trip_and_sort_by_time() -> None:
    assert read_name(segment_name(17, "gateway.1", 0xABC)) == ("gateway.1", 0xABC, False, 1)
    assert read_name(segment_name(17, "gateway.1", 0xABC, reused=True)) == ("gateway.1", 0xABC, True, 1)
    assert segment_name(9, "b", 1) < segment_name(10, "a", 0)
    assert read_name("positions.0") is None
    with pytest.raises(ValueError, match="cannot name a segment"):
        segment_name(1, "../x", 1)


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

    monkeypatch.setattr(spool_writer, "sync_path", fail_once)
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
