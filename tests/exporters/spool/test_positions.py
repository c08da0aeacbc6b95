"""Positions survive torn writes, corruption and a full disk; a backlog is counted incrementally."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

import orjson
import pytest

from exporters.model import Connection, QuotaLimit, RecordKind, UsageSample
from exporters.spool import reader as spool_reader
from exporters.spool.positions import NewerFormat, PositionFiles, State, Totals, file_bytes, read_state
from exporters.spool.reader import SpoolReader
from exporters.spool.records import FRAME, decode_instance, decode_rows, encode_rows
from exporters.spool.writer import SpoolWriter
from tests.exporters.spool.kit import MIB, begun, drain, largest_file, read_all, segments, write


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
    with pytest.raises(NewerFormat):
        SpoolReader(tmp_path)
    with pytest.raises(NewerFormat):  # and not: another reader has the directory
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
