"""A mirror follows the segments of the spool beside its first reader; neither waits for the other."""

from __future__ import annotations

from pathlib import Path

from exporters.model import RecordKind
from exporters.spool.mirror import Mirror, MirrorReader
from exporters.spool.reader import SpoolReader
from exporters.spool.records import Record
from tests.exporters.spool.kit import MIB, drain, segments, write, writer


def push(number: int) -> Record:
    return RecordKind.PUSH, b"%d" % number


def readers(directory: Path, max_bytes: int = MIB) -> tuple[SpoolReader, MirrorReader]:
    mirror = Mirror(directory / "mirror", max_bytes)
    return SpoolReader(directory / "spool", mirror.link), MirrorReader(directory / "mirror")


def test_both_readers_get_every_record_independently(tmp_path: Path) -> None:
    records = [push(number) for number in range(20)]
    write(tmp_path / "spool", records[:10], segment_bytes=60)
    first, second = readers(tmp_path)
    assert drain(first) == records[:10]
    assert segments(tmp_path / "spool") == []
    write(tmp_path / "spool", records[10:], segment_bytes=60)
    assert drain(first) == records[10:]
    assert drain(second) == records
    assert segments(tmp_path / "mirror") == []
    assert (second.totals.records, first.totals.records) == (20, 20)


def test_mirror_reads_open_segments_ahead_of_the_first_reader(tmp_path: Path) -> None:
    spool = writer(tmp_path / "spool")
    first, second = readers(tmp_path)
    spool.append(*push(1))
    spool.flush()
    assert first.next_batch(10, MIB) is not None  # and is not stored yet
    assert drain(second) == [push(1)]
    spool.append(*push(2))
    spool.close()
    assert drain(second) == [push(2)]
    assert len(segments(tmp_path / "mirror")) == 1, "the first reader would link it again after a restart"
    first.close()
    second.close()
    first, second = readers(tmp_path)
    assert drain(first) == [push(1), push(2)]
    assert drain(second) == []
    assert segments(tmp_path / "mirror") == []


def test_segment_in_use_by_the_mirror_is_not_reused(tmp_path: Path) -> None:
    write(tmp_path / "spool", [push(1)])
    first, second = readers(tmp_path)
    assert drain(first) == [push(1)]
    assert list((tmp_path / "spool").glob("*.free")) == []
    write(tmp_path / "spool", [push(2)])
    assert drain(first) == [push(2)]
    assert drain(second) == [push(1), push(2)]


def test_dropped_segments_report_their_pushes(tmp_path: Path) -> None:
    usage = (RecordKind.USAGE, b"no push")
    write(tmp_path / "spool", [push(1), usage, push(2)])
    write(tmp_path / "spool", [push(3)])
    first, second = readers(tmp_path)
    size = segments(tmp_path / "spool")[1].stat().st_size
    assert first.next_batch(10, MIB) is not None
    assert second.drop_oldest(0) == 0, "what the first reader keeps costs no room"
    drain(first)
    assert second.next_batch(1, MIB) is not None
    assert second.drop_oldest(size) == 2
    assert drain(second) == [push(3)]


def test_unread_mirror_is_bounded(tmp_path: Path) -> None:
    write(tmp_path / "spool", [push(number) for number in range(8)], segment_bytes=10)
    mirror = Mirror(tmp_path / "mirror", 20)
    for _ in range(8):
        first = SpoolReader(tmp_path / "spool", mirror.link)
        batch = first.next_batch(1, MIB)
        assert batch is not None
        first.commit(batch)
        drain(first)
        first.close()
        write(tmp_path / "spool", [push(9)])
    assert mirror.skipped > 0
    assert sum(path.stat().st_size for path in segments(tmp_path / "mirror")) < 1000


def test_segment_deleted_by_its_writer_is_released(tmp_path: Path) -> None:
    write(tmp_path / "spool", [push(1)])
    first, second = readers(tmp_path)
    [segment] = segments(tmp_path / "spool")
    segment.unlink()
    assert first.next_batch(10, MIB) is None
    assert drain(second) == [push(1)]
    assert segments(tmp_path / "mirror") == []
