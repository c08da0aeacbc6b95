"""A second reader of a spool: the segments that the first reader follows, as hard links in a directory of their own.

The first reader links each segment when it first sees it, and unlinks its own name when it has finished the segment;
the second reader then unlinks the link. Neither reader waits for the other, no record is copied, and the file system
frees a segment's blocks when both have finished. A segment that still has both names is never unlinked here, because
the first reader would link it anew after a restart and its records would be read twice.
"""

import os
from contextlib import suppress
from pathlib import Path

import structlog

from exporters.model import RecordKind
from exporters.spool.positions import segment_sizes
from exporters.spool.reader import SpoolReader
from exporters.spool.records import scan

_PIECE_BYTES = 16 << 20  # bytes per read; larger than any record

logger = structlog.get_logger(__name__)


class Mirror:
    """Links segments into `directory`. `link` is what SpoolReader calls with each new segment.

    MirrorReader.drop_oldest keeps the directory at `max_bytes`. While it does not run, at most twice as much is kept;
    beyond that, new segments are not linked.
    """

    def __init__(self, directory: Path, max_bytes: int) -> None:
        """Raises OSError when the file system has no hard links."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory = directory
        self._most_bytes = 2 * max_bytes
        self.skipped = 0  # segments that were not linked
        probe, link = directory / "links.probe", directory / "links.probe2"
        probe.touch()
        link.unlink(missing_ok=True)
        os.link(probe, link)
        link.unlink()
        probe.unlink()

    def link(self, segment: Path) -> None:
        """Never raises: a fault of the second reader's directory does not stop the first reader."""
        try:
            if sum(sizes_of_its_own(self._directory).values()) > self._most_bytes:
                raise OSError(f"more than {self._most_bytes} bytes wait to be forwarded")
            os.link(segment, self._directory / segment.name)
        except (FileExistsError, FileNotFoundError):  # linked before a restart, or reused by the writer
            return
        except OSError as exc:
            self.skipped += 1
            logger.error("cannot link a segment, its records are not forwarded", segment=segment.name, cause=str(exc))


class MirrorReader(SpoolReader):
    """The second reader. Its positions are files of its own directory."""

    def drop_oldest(self, max_bytes: int) -> int:
        """Drops the oldest segments above `max_bytes` that only this reader needs; returns how many unread pushes.

        Raises OSError.
        """
        unfinished = self._follow()  # before the sizes: what is dropped is counted
        kept = sizes_of_its_own(self._directory)
        excess, dropped = sum(kept.values()) - max_bytes, 0
        for name in unfinished:
            if excess <= 0:
                break
            if name not in kept:
                continue
            excess -= kept[name]
            segment, pushes = self._segments.pop(name), 0
            at = segment.position
            while (scanned := scan(segment.read(_PIECE_BYTES, at), segment.named.mark, _PIECE_BYTES)).records:
                pushes += sum(kind is RecordKind.PUSH for kind, _ in scanned.records)
                at += scanned.end
            segment.close()
            (self._directory / name).unlink(missing_ok=True)
            logger.warning("dropped a segment that was not forwarded in time", segment=name, pushes=pushes)
            dropped += pushes
        return dropped

    def has(self, segment: str) -> bool:
        """Whether the segment is neither finished nor dropped."""
        return segment in self._segments

    def _let_go(self, segment: Path) -> bool:
        """Unlinks a segment that the first reader has finished as well; others are retried on the next call."""
        if segment.stat().st_nlink > 1:
            return False
        segment.unlink()
        return True


def sizes_of_its_own(directory: Path) -> dict[str, int]:
    """Segments that only a mirror still links, oldest first, with their sizes in bytes."""
    sizes = {}
    for name in segment_sizes(directory):
        with suppress(FileNotFoundError):
            status = (directory / name).stat()
            if status.st_nlink == 1:
                sizes[name] = status.st_size
    return sizes
