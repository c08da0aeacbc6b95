"""What reads a spool beside its reader: a mirror, and the age of what is not stored, from the files alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from exporters.model import RecordKind, UsageSample
from exporters.spool.mirror import Mirror, MirrorReader
from exporters.spool.reader import SpoolReader
from exporters.spool.records import Record, encode_rows
from exporters.spool.waiting import PUSHES, USAGE, oldest_ms
from tests.exporters.spool.kit import MIB, batches, drain, segments, write, writer


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


def timed_push(at_ms: int, nbytes: int = 50) -> bytes:
    return at_ms.to_bytes(8, "big") + bytes(nbytes)


def usage(at_ms: int) -> bytes:
    return encode_rows(
        RecordKind.USAGE, [UsageSample("c", "producer_byte_rate", at_ms, "", "a", "", 1, 2, 3.0, 0.0, 0, "gateway")]
    )


def test_age_is_that_of_the_first_unread_record_of_each_kind(tmp_path: Path) -> None:
    assert oldest_ms(tmp_path) == {}
    pushes, quotas = writer(tmp_path, "pushes"), writer(tmp_path, "quotas")
    for at_ms in (1_000, 2_000):
        pushes.append(RecordKind.PUSH, timed_push(at_ms))
    quotas.append(RecordKind.USAGE, usage(1_500))
    pushes.flush()
    quotas.flush()
    assert oldest_ms(tmp_path) == {PUSHES: 1_000, USAGE: 1_500}
    reader = SpoolReader(tmp_path)
    ages = [oldest_ms(tmp_path) for _ in batches(reader, 1)]  # a batch that is begun is not stored
    assert ages[0] == {PUSHES: 1_000, USAGE: 1_500}
    assert oldest_ms(tmp_path) == {}
    for side in (reader, pushes, quotas):
        side.close()


def test_age_does_not_need_a_reader_nor_position_files(tmp_path: Path) -> None:
    spool = writer(tmp_path, "pushes")
    spool.append(RecordKind.INSTANCE, timed_push(3_000))
    spool.append(RecordKind.PUSH, timed_push(4_000, 3 * MIB))
    spool.close()
    for name in ("positions.0", "positions.1"):
        (tmp_path / name).unlink(missing_ok=True)
    assert oldest_ms(tmp_path) == {PUSHES: 3_000}


def test_large_or_damaged_records_do_not_hide_those_behind_them(tmp_path: Path) -> None:
    spool = writer(tmp_path, "pushes", segment_bytes=8 * MIB)
    spool.append(RecordKind.PUSH, timed_push(1_000, 3 * MIB))
    spool.append(RecordKind.PUSH, timed_push(2_000))
    spool.close()
    assert oldest_ms(tmp_path) == {PUSHES: 1_000}
    [segment] = segments(tmp_path)
    data = bytearray(segment.read_bytes())
    data[100] ^= 0xFF
    segment.write_bytes(data)
    assert oldest_ms(tmp_path) == {PUSHES: 2_000}


def test_reused_segment_has_nothing_waiting_behind_its_last_record(tmp_path: Path) -> None:
    spool, reader = writer(tmp_path, "pushes", segment_bytes=100), SpoolReader(tmp_path)
    for at_ms in range(1_000, 9_000, 1_000):
        spool.append(RecordKind.PUSH, timed_push(at_ms, 200))
        spool.flush()
        spool.sync()
        assert oldest_ms(tmp_path) == {PUSHES: at_ms}
        drain(reader)
        assert oldest_ms(tmp_path) == {}
    spool.close()
    reader.close()


@pytest.mark.parametrize("ignored", ["", "replay"])
def test_replayed_records_are_old_by_intention(tmp_path: Path, ignored: str) -> None:
    spool = writer(tmp_path, "replay")
    spool.append(RecordKind.PUSH, timed_push(1_000))
    spool.close()
    assert oldest_ms(tmp_path, ignored) == ({} if ignored else {PUSHES: 1_000})
