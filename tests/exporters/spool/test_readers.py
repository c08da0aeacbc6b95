"""Readers of a spool: positions survive faults, a backlog is counted; a mirror, and the age of what is not stored."""

import os
from dataclasses import asdict
from pathlib import Path

import orjson
import pytest

from exporters.model import Connection, QuotaLimit, RecordKind, UsageSample
from exporters.spool import reader as spool_reader
from exporters.spool.mirror import Mirror, MirrorReader
from exporters.spool.positions import NewerFormat, PositionFiles, State, Totals, file_bytes, read_state
from exporters.spool.reader import SpoolReader
from exporters.spool.records import FRAME, Record, decode_instance, decode_rows, encode_rows
from exporters.spool.waiting import PUSHES, USAGE, oldest_ms
from exporters.spool.writer import SpoolWriter
from tests.exporters.spool.conftest import MIB, batches, begun, drain, largest_file, read_all, segments, write, writer


def test_totals_and_note_survive_a_reader_restart(tmp_path: Path, spool: SpoolWriter) -> None:
    reader = SpoolReader(tmp_path)
    for n in range(5):
        spool.append(RecordKind.PUSH, b"%d" % n)
    spool.flush()
    for number in (1, 2):
        reader.commit(begun(reader, 2), {"batches": number})
    last = begun(reader, 2)
    reader.close()  # equivalent to a crash
    later = SpoolReader(tmp_path)
    assert (later.totals.records, later.note) == (4, {"batches": 2})
    assert later.totals.bytes + later.buffered()[1] == spool.bytes
    replayed = later.next_batch(9, MIB)
    assert replayed == last
    later.commit(replayed, {"batches": 3})
    assert (later.totals.records, later.note) == (5, {"batches": 3})
    later.close()


def test_failed_commit_changes_no_totals(tmp_path: Path, reader: SpoolReader) -> None:
    write(tmp_path, [(RecordKind.PUSH, b"record")])
    batch = begun(reader)
    with largest_file(10), pytest.raises(OSError, match="File too large"):
        reader.commit(batch, {"batches": 1})
    assert (reader.totals.records, reader.note, reader.next_batch(1, MIB)) == (0, {}, batch)
    reader.commit(batch, {"batches": 1})
    assert (reader.totals.records, reader.note, reader.next_batch(1, MIB)) == (1, {"batches": 1}, None)


def test_begun_batch_with_lost_records_is_released(tmp_path: Path) -> None:
    write(tmp_path, [(RecordKind.PUSH, b"lost")])
    reader = SpoolReader(tmp_path)
    begun(reader)
    reader.close()
    os.truncate(segments(tmp_path)[0], 5)
    write(tmp_path, [(RecordKind.PUSH, b"kept")])
    assert read_all(tmp_path) == [(RecordKind.PUSH, b"kept")]


def test_second_reader_raises_blocking_io_error(tmp_path: Path) -> None:
    reader = SpoolReader(tmp_path)
    with pytest.raises(BlockingIOError):
        SpoolReader(tmp_path)
    reader.close()
    SpoolReader(tmp_path).close()


@pytest.mark.parametrize(
    "garbage", [b"", b"{}", b'{"positions": ', bytes(100), b"\xff" * 70_000, b"headroom" + bytes(90)]
)
@pytest.mark.parametrize("damaged", [0, 1])
def test_corrupt_position_file_repeats_at_most_the_last_batch(
    tmp_path: Path, spool: SpoolWriter, garbage: bytes, damaged: int
) -> None:
    reader, tokens = SpoolReader(tmp_path), []
    for n in range(5):
        spool.append(RecordKind.PUSH, b"%d" % n)
        spool.flush()
        batch = begun(reader)
        reader.commit(batch)
        tokens.append(batch.token)
    reader.close()
    (tmp_path / f"positions.{damaged}").write_bytes(garbage)
    reader = SpoolReader(tmp_path)
    again = reader.next_batch(10, MIB)
    assert again is None or again.token == tokens[-1]  # which the store has under this token
    if again is not None:
        reader.commit(again)
    spool.append(RecordKind.PUSH, b"next")
    spool.flush()
    assert drain(reader) == [(RecordKind.PUSH, b"next")]
    assert reader.totals.records == 6
    reader.close()


def test_saving_positions_allocates_no_blocks(tmp_path: Path) -> None:
    """Saving must not allocate blocks, because a full disk refuses allocations."""
    files = PositionFiles(tmp_path)
    before = [(tmp_path / f"positions.{n}").stat() for n in (0, 1)]
    for n in range(10):
        files.save(State({f"segment-{m}": m for m in range(200)}, ("segment-1", 0, n), {}, Totals(records=n), {"n": n}))
    after = [(tmp_path / f"positions.{n}").stat() for n in (0, 1)]
    assert [(status.st_size, status.st_blocks, status.st_ino) for status in before] == [
        (status.st_size, status.st_blocks, status.st_ino) for status in after
    ]
    assert all(status.st_blocks * 512 >= status.st_size for status in after)
    assert read_state(tmp_path).note == PositionFiles(tmp_path).state.note == {"n": 9}


def test_positions_of_many_segments_are_saved(tmp_path: Path) -> None:
    files = PositionFiles(tmp_path)
    many = State({f"{n:020}-gw0-00000000-v1.spool": n for n in range(10_000)})
    for _ in range(2):
        files.save(many)
    assert PositionFiles(tmp_path).state == many


def test_fields_of_another_version_are_ignored_or_defaulted(tmp_path: Path) -> None:
    PositionFiles(tmp_path)
    body = orjson.dumps({"positions": {"a": 1}, "totals": {"records": 3, "novel": 1}, "novel": []})
    (tmp_path / "positions.1").write_bytes(file_bytes(1, 9, body))
    assert PositionFiles(tmp_path).state == State({"a": 1}, None, {}, Totals(records=3))


def test_newer_format_is_refused_and_kept(tmp_path: Path) -> None:
    write(tmp_path, [(RecordKind.PUSH, b"later")])
    [segment] = segments(tmp_path)
    newer = segment.rename(segment.with_name(segment.name.replace("-v1", "-v2")))
    write(tmp_path, [(RecordKind.PUSH, b"now")])
    for _ in range(2):  # and not the second time: another reader has the directory
        with pytest.raises(NewerFormat, match=f"{newer.name} is no segment of format 1"):
            SpoolReader(tmp_path)
    assert newer.exists()
    newer.rename(tmp_path / "moved-away")
    assert read_all(tmp_path) == [(RecordKind.PUSH, b"now")]
    (tmp_path / "positions.0").write_bytes(file_bytes(2, 99, b"{}"))
    for _ in range(2):
        with pytest.raises(NewerFormat):
            SpoolReader(tmp_path)


def test_segment_of_another_version_that_appears_later_stops_the_reader(tmp_path: Path, reader: SpoolReader) -> None:
    (tmp_path / "notes.spool").touch()
    with pytest.raises(NewerFormat, match=r"notes\.spool"):
        reader.next_batch(1, 1)


def test_records_of_other_versions_are_decoded() -> None:
    usage = UsageSample("prod", "producer_byte_rate", 17, "alice", "app-1", "", 1, 1000, 100.5, 250.0, 3, "gateway")
    limit = QuotaLimit("prod", "alice", "<default>", "", "producer_byte_rate", 17, None)
    newer = orjson.loads(encode_rows(RecordKind.USAGE, [usage]))
    newer["fields"].insert(0, "novel")
    newer["rows"][0].insert(0, "value")
    assert decode_rows(RecordKind.USAGE, orjson.dumps(newer)) == [usage]
    fields = orjson.loads(encode_rows(RecordKind.USAGE, [usage]))
    of_before = len(usage) - len(UsageSample._field_defaults)
    older = {"fields": fields["fields"][:of_before], "rows": [fields["rows"][0][:of_before]]}
    assert decode_rows(RecordKind.USAGE, orjson.dumps(older)) == [usage]
    assert decode_rows(RecordKind.LIMITS, encode_rows(RecordKind.LIMITS, [limit])) == [limit]
    connection = Connection("c", "l", "alice", "10.0.0.1", 5, "java", "4.3", 1)
    facts = orjson.dumps(asdict(connection) | {"novel": True})
    seen = decode_instance(bytes(24) + len(facts).to_bytes(2) + (2).to_bytes(2) + facts + b"ab")
    assert seen.connection == connection


def test_backlog_is_counted_incrementally_and_estimated_meanwhile(
    spool: SpoolWriter, reader: SpoolReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_reader, "_COUNTED_AT_ONCE_BYTES", 1 << 19)
    for _ in range(3_000):
        spool.append(RecordKind.PUSH, bytes(1024 - FRAME.size))
    spool.flush()
    looks = 0
    while not reader.is_counted:
        records, nbytes = reader.buffered()
        assert nbytes == 3_000 * 1024
        assert abs(records - 3_000) <= 3
        looks += 1
    assert looks > 3
    assert reader.buffered() == (3_000, 3_000 * 1024)


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
    write(tmp_path / "spool", [push(4)])
    drain(first)
    assert second.drop_oldest(0) == 1, "linked since the last look"


def test_unread_mirror_is_bounded(tmp_path: Path) -> None:
    write(tmp_path / "spool", [push(number) for number in range(8)], segment_bytes=10)
    mirror = Mirror(tmp_path / "mirror", 20)
    for _ in range(8):
        first = SpoolReader(tmp_path / "spool", mirror.link)
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
    records = [(RecordKind.INSTANCE, timed_push(3_000)), (RecordKind.PUSH, timed_push(4_000, 3 * MIB))]
    write(tmp_path, records, name="pushes")
    for name in ("positions.0", "positions.1"):
        (tmp_path / name).unlink(missing_ok=True)
    assert oldest_ms(tmp_path) == {PUSHES: 3_000}


def test_large_or_damaged_records_do_not_hide_those_behind_them(tmp_path: Path) -> None:
    records = [(RecordKind.PUSH, timed_push(1_000, 3 * MIB)), (RecordKind.PUSH, timed_push(2_000))]
    write(tmp_path, records, segment_bytes=8 * MIB, name="pushes")
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
    write(tmp_path, [(RecordKind.PUSH, timed_push(1_000))], name="replay")
    assert oldest_ms(tmp_path, ignored) == ({} if ignored else {PUSHES: 1_000})
