"""exporters/spool/waiting.py: the age of what is not stored, from the files alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from exporters.model import RecordKind, UsageSample
from exporters.spool.reader import SpoolReader
from exporters.spool.records import encode_rows
from exporters.spool.waiting import PUSHES, USAGE, oldest_ms
from tests.exporters.spool.kit import MIB, batches, drain, segments, writer


def push(at_ms: int, nbytes: int = 50) -> bytes:
    return at_ms.to_bytes(8, "big") + bytes(nbytes)


def usage(at_ms: int) -> bytes:
    return encode_rows(
        RecordKind.USAGE, [UsageSample("c", "producer_byte_rate", at_ms, "", "a", "", 1, 2, 3.0, 0.0, 0, "gateway")]
    )


def test_age_is_that_of_the_first_unread_record_of_each_kind(tmp_path: Path) -> None:
    assert oldest_ms(tmp_path) == {}
    pushes, quotas = writer(tmp_path, "pushes"), writer(tmp_path, "quotas")
    for at_ms in (1_000, 2_000):
        pushes.append(RecordKind.PUSH, push(at_ms))
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
    spool.append(RecordKind.INSTANCE, push(3_000))
    spool.append(RecordKind.PUSH, push(4_000, 3 * MIB))
    spool.close()
    for name in ("positions.0", "positions.1"):
        (tmp_path / name).unlink(missing_ok=True)
    assert oldest_ms(tmp_path) == {PUSHES: 3_000}


def test_large_or_damaged_records_do_not_hide_those_behind_them(tmp_path: Path) -> None:
    spool = writer(tmp_path, "pushes", segment_bytes=8 * MIB)
    spool.append(RecordKind.PUSH, push(1_000, 3 * MIB))
    spool.append(RecordKind.PUSH, push(2_000))
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
        spool.append(RecordKind.PUSH, push(at_ms, 200))
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
    spool.append(RecordKind.PUSH, push(1_000))
    spool.close()
    assert oldest_ms(tmp_path, ignored) == ({} if ignored else {PUSHES: 1_000})
