"""The format of the spool: names of segments, framing of records, recovery after damage, records. Sans-I/O.

    segment name   <created, ns since 1970, 20 digits>-<writer>-<mark, 8 hex digits>-v<format>[r].spool
    record         mark u32 | length of the body u32 | CRC-32C of kind and body u32 | kind u8 | body

All big endian. The mark is random per segment, so that a client cannot craft a body that looks like a record: after
damage the reader searches for the next mark followed by a record with a valid checksum. A segment with an `r` in its
name overwrites a finished one: until its writer closes it, old bytes follow its end.

Format 1 is this framing and the record layouts below. A segment of a newer format is left alone.

The body of a push is a fixed head, the connection's facts, the client id and the unchanged payload:

    received_at_ms i64 | client_instance_id 16s | subscription_id i32 | terminating u8 | compression_type u8
    | connection_len u16 | client_id_len u16 | connection (JSON) | client_id (UTF-8) | payload

The fields from connection_len to client_id are equal in all pushes of a connection; `sender_bytes` encodes them
once. Usage, limits, facts and topics are JSON: {"fields": [names], "rows": [[values]]}.

Versions of Headroom with more or fewer JSON fields can read each other's records: unknown fields are ignored, missing
ones take the default of exporters/model.py. A change of the binary layout needs a new FORMAT.
"""

import dataclasses
import re
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import orjson
from crc32c import crc32c

from exporters.identity import stored_name
from exporters.model import (
    ClientInstance,
    Connection,
    Push,
    QuotaLimit,
    RecordKind,
    StoredFacts,
    TopicSample,
    UsageSample,
)

FRAME: Final = struct.Struct(">IIIB")
SUFFIX: Final = ".spool"
FREE_SUFFIX: Final = ".free"  # finished, to be overwritten
FORMAT: Final = 1
_HEAVY: Final = ".heavy"
_QUIET: Final = ".quiet"
USAGE_WRITER: Final = "quotas"  # writes usage and limits, all others pushes; each side has its own share of the spool
_CHECKED: Final = 12  # where the checksummed bytes of a frame begin
_NAME: Final = re.compile(r"\d{20}-([A-Za-z0-9_.]+)-([0-9a-f]{8})-v(\d{1,4})(r?)\.spool")
_WRITER: Final = re.compile(r"[A-Za-z0-9_.]+")
_KINDS: Final[dict[int, RecordKind]] = {kind.value: kind for kind in RecordKind}
# Where a checksum begins.
CRC_OF_KIND: Final[dict[int, int]] = {kind.value: crc32c(bytes([kind])) for kind in RecordKind}

Record = tuple[RecordKind, bytes]
# What the records that consist of rows have: named tuples.
ROW_TYPES: Final[dict[RecordKind, Any]] = {
    RecordKind.USAGE: UsageSample,
    RecordKind.LIMITS: QuotaLimit,
    RecordKind.FACTS: StoredFacts,
    RecordKind.TOPICS: TopicSample,
}


class SegmentName(NamedTuple):
    """The parts of a segment's name. `reused`: it overwrites a finished segment."""

    writer: str
    mark: int
    reused: bool
    format: int = FORMAT


def segment_name(created_ns: int, writer: str, mark: int, reused: bool = False) -> str:
    """A name that sorts by age. Raises ValueError unless `writer` consists of letters, digits, '_' and '.'."""
    if not _WRITER.fullmatch(writer):
        raise ValueError(f"cannot name a segment after the writer {writer!r}: letters, digits, '_' and '.' only")
    return f"{created_ns:020d}-{writer}-{mark:08x}-v{FORMAT}{'r' if reused else ''}{SUFFIX}"


def holds_usage(segment: str) -> bool:
    """Whether the segment has usage and limits instead of pushes."""
    return f"-{USAGE_WRITER}-" in segment


def heavy_writer(name: str, number: int, is_quiet: bool) -> str:
    """The writer beside `name` for payers that send most; `is_quiet`: for their connections that send little."""
    return f"{name}{_HEAVY}{number}{_QUIET if is_quiet else ''}"


def payers_writer(writer: str) -> str:
    """The writer that stands for its payers: of a quiet one the one beside it."""
    return writer.removesuffix(_QUIET)


def of_share(segment: str, writer: str) -> bool:
    """Whether a segment is of this writer of payers, or of the quiet one beside it."""
    return f"-{writer}-" in segment or f"-{writer}{_QUIET}-" in segment


def is_heavy(writer: str) -> bool:
    return _HEAVY in writer


def read_name(segment: str) -> SegmentName | None:
    """None for names that are not segments."""
    match = _NAME.fullmatch(segment)
    return SegmentName(match[1], int(match[2], 16), match[4] != "", int(match[3])) if match else None


class Scan(NamedTuple):
    """The records found in a part of a segment."""

    records: list[Record]
    ends: list[tuple[int, int]]  # per record: the offset after it, and the number of damaged ranges skipped before it

    @property
    def end(self) -> int:
        """The offset after the last complete record."""
        return self.ends[-1][0] if self.ends else 0

    @property
    def corrupt(self) -> int:
        """Damaged ranges skipped before `end`."""
        return self.ends[-1][1] if self.ends else 0


def scan(data: bytes, mark: int, max_records: int) -> Scan:
    """The complete records in `data`, which begins at a record.

    A damaged range is skipped if a valid record follows it; otherwise the scan ends before it, as before a partly
    written record.
    """
    records: list[Record] = []
    view = memoryview(data)
    ends: list[tuple[int, int]] = []
    mark_bytes = mark.to_bytes(4)
    start = corrupt = 0
    while len(records) < max_records:
        behind = _record_end(view, start, mark)
        if behind > 0:
            records.append((_KINDS[data[start + _CHECKED]], data[start + FRAME.size : behind]))
            start = behind
            ends.append((behind, corrupt))
            continue
        start = data.find(mark_bytes, start + 1)
        while start >= 0 and _record_end(view, start, mark) < 0:
            start = data.find(mark_bytes, start + 1)
        if start < 0:
            break
        corrupt += 1
    return Scan(records, ends)


def frame_bytes(head: bytes, mark: int) -> int:
    """The length of the record according to `head`; 0 when that is not a record head."""
    if len(head) < FRAME.size:
        return 0
    mark_in_head, length, _, _ = FRAME.unpack_from(head)
    return FRAME.size + int(length) if mark_in_head == mark else 0


def _record_end(view: memoryview, start: int, mark: int) -> int:
    """The end of the record at `start`; -1 when it is incomplete or damaged."""
    if start + FRAME.size > len(view):
        return -1
    mark_in_head, length, checksum, kind = FRAME.unpack_from(view, start)
    end: int = start + FRAME.size + length
    if mark_in_head != mark or end > len(view) or kind not in _KINDS:
        return -1
    return end if crc32c(view[start + _CHECKED : end]) == checksum else -1


_PUSH_HEAD: Final = struct.Struct(">q16siBB")
_PUSH_ORIGIN: Final = struct.Struct(">16siBB")
_INSTANCE_HEAD: Final = struct.Struct(">q16s")
_SENDER_HEAD: Final = struct.Struct(">HH")
# Where connection_len is in an instance and in a push record; the connection is 4 bytes behind it.
CONNECTION_AT: Final = (24, 30)
_CONNECTION_FIELDS: Final = tuple(field.name for field in dataclasses.fields(Connection))


def sender_bytes(connection: Connection, client_id: str | None) -> bytes:
    """The part of a record that identifies its sender: connection and client id, with names as they are stored."""
    facts = orjson.dumps(dataclasses.asdict(connection) | {"principal": stored_name(connection.principal)})
    name = stored_name(client_id or "").encode("utf-8", "replace")
    return _SENDER_HEAD.pack(len(facts), len(name)) + facts + name


def push_origin(
    client_instance_id: bytes, subscription_id: int, terminating: bool, compression_type: int, sender: bytes
) -> bytes:
    """The part of a push record that consecutive pushes of a client share."""
    return _PUSH_ORIGIN.pack(client_instance_id, subscription_id, terminating, compression_type) + sender


def push_record(received_at_ms: int, origin: bytes, payload: bytes) -> bytes:
    return received_at_ms.to_bytes(8, "big", signed=True) + origin + payload


def decode_push(record: bytes) -> Push:
    """Raises ValueError when the record is not a push."""
    received_at_ms, instance_id, subscription_id, terminating, compression = _unpack(_PUSH_HEAD, record)
    connection, client_id, start = _sender(record, _PUSH_HEAD.size)
    return Push(
        connection=connection,
        client_id=client_id,
        client_instance_id=instance_id,
        received_at_ms=received_at_ms,
        subscription_id=subscription_id,
        terminating=bool(terminating),
        compression_type=compression,
        payload=record[start:],
    )


def encode_instance(seen_at_ms: int, client_instance_id: bytes, sender: bytes) -> bytes:
    return _INSTANCE_HEAD.pack(seen_at_ms, client_instance_id) + sender


def decode_instance(record: bytes) -> ClientInstance:
    """Raises ValueError when the record is not a client instance."""
    seen_at_ms, instance_id = _unpack(_INSTANCE_HEAD, record)
    connection, client_id, _ = _sender(record, _INSTANCE_HEAD.size)
    return ClientInstance(connection, client_id, instance_id, seen_at_ms)


def encode_rows(kind: RecordKind, rows: Sequence[Sequence[Any]]) -> bytes:
    """A record of rows of ROW_TYPES[kind]."""
    return orjson.dumps({"fields": ROW_TYPES[kind]._fields, "rows": rows}, default=list)


def decode_rows(kind: RecordKind, record: bytes) -> list[Any]:
    """Its rows, as ROW_TYPES[kind]; fields that this has not are ignored. Raises ValueError, TypeError."""
    row_type = ROW_TYPES[kind]
    try:
        table = orjson.loads(record)
        columns = [(n, name) for n, name in enumerate(table["fields"]) if name in row_type._fields]
        rows = [{name: row[n] for n, name in columns} for row in table["rows"]]
    except (KeyError, TypeError, IndexError) as exc:
        raise ValueError(f"cannot read rows of {len(record)} bytes: {exc}") from exc
    return [row_type(**row) for row in rows]


def _sender(record: bytes, at: int) -> tuple[Connection, str, int]:
    """Connection and client id at `at`, and the position after them."""
    connection_len, client_id_len = _unpack(_SENDER_HEAD, record, at)
    start = at + _SENDER_HEAD.size
    middle = start + connection_len
    end = middle + client_id_len
    return decode_connection(record[start:middle]), record[middle:end].decode(), end


def _unpack(head: struct.Struct, record: bytes, at: int = 0) -> tuple[Any, ...]:
    try:
        return head.unpack_from(record, at)
    except struct.error as exc:
        raise ValueError(f"cannot read a record of {len(record)} bytes: {exc}") from exc


@lru_cache(maxsize=65_536)
def decode_connection(encoded: bytes) -> Connection:
    """Raises ValueError."""
    try:
        facts = orjson.loads(encoded)
        return Connection(**{name: facts[name] for name in _CONNECTION_FIELDS})
    except (KeyError, TypeError) as exc:
        raise ValueError(f"cannot read a connection of {len(encoded)} bytes: {exc}") from exc
