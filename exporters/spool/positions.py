"""The positions of a spool's reader, in two preallocated files that are overwritten alternately.

    positions.0, positions.1   magic 8s | format u16 | generation u64 | length u32
                               | CRC-32C of all other bytes u32 | state (JSON, `length` bytes)

The valid file with the higher generation is the current one, so a torn write loses one step, which the reader repeats
with the same deduplication token. Both files are allocated when they are created, so that the reader can commit, and
thereby free segments, on a full disk.
"""

import os
import struct
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from operator import itemgetter
from pathlib import Path
from typing import Any

import orjson
import structlog
from crc32c import crc32c

from exporters.spool.records import SUFFIX

logger = structlog.get_logger(__name__)

_NAMES = ("positions.0", "positions.1")
_HEAD = struct.Struct(">8sHQI")
_CHECKSUM = struct.Struct(">I")
_BODY_AT = _HEAD.size + _CHECKSUM.size
_MAGIC = b"headroom"
_FORMAT = 1
_MIN_FILE_BYTES = 1 << 16


class NewerFormat(OSError):  # noqa: N818 - a condition, as BlockingIOError
    """The spool was written by a newer version of Headroom with another format."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals of all records committed since the spool was created."""

    records: int = 0
    bytes: int = 0  # frames included
    corrupt: int = 0  # stretches of damage that were skipped; their bytes are in `bytes`
    torn: int = 0  # segment ends half written when their writer died; nothing in them was acknowledged


@dataclass(slots=True)
class State:
    positions: dict[str, int] = field(default_factory=dict)  # by segment name
    intent: tuple[str, int, int] | None = None  # segment, start and end of the batch that is being written out
    # By table, the pieces of that batch that were divided, or (negative) refused: see SpoolReader.isolate.
    isolated: dict[str, list[int]] = field(default_factory=dict)
    totals: Totals = field(default_factory=Totals)
    note: dict[str, Any] = field(default_factory=dict)
    unsure: list[str] = field(default_factory=list)  # segments whose position was lost: records may be stored already


class PositionFiles:
    """Loads and saves the State of a spool directory. All methods raise OSError."""

    def __init__(self, directory: Path) -> None:
        """Creates missing files. Raises NewerFormat."""
        self._paths = [directory / name for name in _NAMES]
        (first, first_state), (second, second_state) = (_read(path) for path in self._paths)
        self._generation = max(first, second)
        self.state = second_state if first < second else first_state
        self.is_new = self._generation == 0  # no state was saved, or none can be read
        self._next = 0 if first < second else 1
        for path in self._paths:
            if not path.exists() or path.stat().st_size < _MIN_FILE_BYTES:
                _allocate(path, _MIN_FILE_BYTES)
        sync_path(directory)

    def save(self, state: State) -> None:
        """Durable when it returns. After an OSError the previous state is intact."""
        body = orjson.dumps(asdict(state))
        data = file_bytes(_FORMAT, self._generation + 1, body)
        path = self._paths[self._next]
        if not path.exists() or len(data) > path.stat().st_size:
            _allocate(path, max(_MIN_FILE_BYTES, 2 * len(data)))
        fd = os.open(path, os.O_WRONLY)
        try:
            rest = memoryview(data)
            at = 0
            while rest:
                written = os.pwrite(fd, rest, at)
                rest, at = rest[written:], at + written
            os.fdatasync(fd)
        finally:
            os.close(fd)
        self._generation += 1
        self._next = 1 - self._next


def file_bytes(version: int, generation: int, body: bytes) -> bytes:
    head = _HEAD.pack(_MAGIC, version, generation, len(body))
    return head + _CHECKSUM.pack(crc32c(body, crc32c(head))) + body


def read_state(directory: Path) -> State:
    """The current state; may be called while a reader is active. Raises OSError."""
    return max((_read(directory / name) for name in _NAMES), key=itemgetter(0))[1]


def _allocate(path: Path, nbytes: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(fd, 0, nbytes)
        os.fsync(fd)
    finally:
        os.close(fd)


def _read(path: Path) -> tuple[int, State]:
    """Generation and state of one file; generation 0 if it has no valid state. Raises NewerFormat, OSError."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return 0, State()
    if len(data) < _BODY_AT or not any(data[:_BODY_AT]):
        return 0, State()
    magic, version, generation, length = _HEAD.unpack_from(data)
    body = data[_BODY_AT : _BODY_AT + length]
    if magic != _MAGIC or data[: _BODY_AT + length] != file_bytes(version, generation, body):
        logger.error("a file of spool positions is damaged and ignored", path=str(path))
        return 0, State()
    if version > _FORMAT:
        raise NewerFormat(f"{path} has format {version}, this version of Headroom reads format {_FORMAT}")
    # Another version may have written the file: unknown fields are ignored, and missing ones have their defaults.
    saved = orjson.loads(body)
    of_state, of_totals = ({member.name for member in fields(part)} for part in (State, Totals))
    state = State(**{name: value for name, value in saved.items() if name in of_state})
    totals = saved.get("totals", {})
    state.totals = Totals(**{name: total for name, total in totals.items() if name in of_totals})
    return generation, state


def sync_path(path: Path) -> None:
    """Makes a file, or the entries of a directory, durable (fsync)."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def segment_sizes(directory: Path) -> dict[str, int]:
    """The segments in a spool directory, oldest first, with their sizes in bytes."""
    sizes = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.endswith(SUFFIX):
                with suppress(FileNotFoundError):  # the reader has freed it
                    sizes[entry.name] = entry.stat().st_size
    return dict(sorted(sizes.items()))
