"""What waits in a spool, found in its files alone: independent of the reader, which may hang. Read-only."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from exporters.model import RecordKind
from exporters.spool.positions import read_state, segment_sizes
from exporters.spool.reader import FollowedSegment
from exporters.spool.records import FORMAT, FRAME, Record, decode_rows, frame_bytes, read_name, scan

PUSHES: Final = "pushes"
USAGE: Final = "usage"
KINDS: Final = (PUSHES, USAGE)
_OF_PUSHES: Final = (RecordKind.PUSH, RecordKind.INSTANCE)
_FIRST_BYTES = 1 << 20  # holds the first record of most segments
_MOST_BYTES = 64 << 20


class WaitingSegment(NamedTuple):
    """The unread part of a segment."""

    segment: str
    writer: str
    records: int
    bytes: int
    position: int
    being_written: bool


def waiting_segments(directory: Path, positions: Mapping[str, int]) -> Iterator[WaitingSegment]:
    """Each unfinished segment, oldest first; none without a spool. Raises OSError."""
    for name, segment in _unfinished(directory, positions) if directory.is_dir() else ():
        segment.count_ahead(segment.size)
        here = segment.waiting()
        if here.nbytes:
            writer, written = segment.named.writer, segment.is_being_written()
            yield WaitingSegment(name, writer, here.records, here.nbytes, segment.position, written)


def oldest_ms(directory: Path, ignored: str = "") -> dict[str, int]:
    """The time (ms since 1970) of the oldest record that is not stored, by kind: PUSHES, when it was received, and
    USAGE, when it was measured. A kind is missing when none of its records waits.

    `ignored`: the writer whose records are old by intention. Raises OSError.
    """
    oldest: dict[str, int] = {}
    for _, segment in _unfinished(directory, read_state(directory).positions, ignored):
        if (first := _first_unread(segment)) is not None:
            kind, body = first
            if kind in _OF_PUSHES:
                side, at_ms = PUSHES, int.from_bytes(body[:8], "big", signed=True)
            else:  # records of quotas and of the cluster's facts have the time from which they are valid
                times = (row.ts_ms if hasattr(row, "ts_ms") else row.valid_from_ms for row in decode_rows(kind, body))
                side, at_ms = USAGE, min(times, default=0)
            oldest[side] = min(oldest.get(side, at_ms), at_ms)
    return oldest


def _unfinished(
    directory: Path, positions: Mapping[str, int], ignored: str = ""
) -> Iterator[tuple[str, FollowedSegment]]:
    """Segments of formats that are known, each open until the next one is asked for. Raises OSError."""
    for name in segment_sizes(directory):
        named = read_name(name)
        if named is None or named.format > FORMAT or named.writer == ignored:
            continue
        try:
            segment = FollowedSegment(directory / name, named, positions.get(name, 0))
        except FileNotFoundError:  # finished just now
            continue
        with closing(segment):
            yield name, segment


def _first_unread(segment: FollowedSegment) -> Record | None:
    """The first unread record; damage before it is skipped, except in a reused segment, where old bytes follow."""
    nbytes, mark = _FIRST_BYTES, segment.named.mark
    if segment.named.reused and not frame_bytes(segment.read(FRAME.size, segment.position), mark):
        return None
    while True:
        data = segment.read(nbytes, segment.position)
        if records := scan(data, mark, 1).records:
            return records[0]
        if len(data) < nbytes or nbytes >= _MOST_BYTES:
            return None
        nbytes *= 8
