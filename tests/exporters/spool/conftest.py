"""Spools in a temporary directory: writing, reading to the end, a simulated full disk; a writer and a reader of one."""

import resource
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import strategies as st

from exporters.model import RecordKind
from exporters.spool.reader import Batch, SpoolReader
from exporters.spool.records import Record
from exporters.spool.writer import SpoolWriter

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


def begun(reader: SpoolReader, max_records: int = 1000, max_bytes: int = MIB) -> Batch:
    """The next batch, begun."""
    batch = reader.next_batch(max_records, max_bytes)
    assert batch is not None
    reader.begin(batch)
    return batch


def batches(reader: SpoolReader, max_records: int = 1000, max_bytes: int = MIB) -> Iterator[Batch]:
    """Each that is left, begun; it is committed when the next one is asked for."""
    while (batch := reader.next_batch(max_records, max_bytes)) is not None:
        reader.begin(batch)
        yield batch
        reader.commit(batch)


def drain(reader: SpoolReader, *, max_records: int = 1000, max_bytes: int = MIB) -> list[Record]:
    return [record for batch in batches(reader, max_records, max_bytes) for record in batch.records]


def read_all(directory: Path) -> list[Record]:
    with closing(SpoolReader(directory)) as reader:
        return drain(reader)


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.spool"))


@contextmanager
def largest_file(nbytes: int) -> Iterator[None]:
    """Simulates a full disk: writes beyond `nbytes` in a file are short, then fail."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[SpoolWriter]:
    with closing(writer(tmp_path)) as opened:
        yield opened


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[SpoolReader]:
    with closing(SpoolReader(tmp_path)) as opened:
        yield opened
