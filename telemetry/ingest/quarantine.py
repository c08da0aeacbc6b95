"""Stores pushes that the store does not accept, unchanged, in a bounded directory; the oldest are removed first.

telemetry/ingest/quarantine_reader.py reads the files and describes their format.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from pathlib import Path

import structlog
from xxhash import xxh3_64_hexdigest

from exporters.model import Push
from telemetry.decode.decoder import Refusal
from telemetry.ingest.quarantine_reader import SUFFIX, file_bytes

log = structlog.get_logger(__name__)

_MAX_SYNCED_ONE_BY_ONE = 16


class Quarantine:
    """At most `max_records` files and `max_bytes` in all; the oldest received are removed first. One per directory."""

    def __init__(self, directory: Path, max_records: int, max_bytes: int) -> None:
        """Raises OSError."""
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._new: deque[tuple[Push, Refusal]] = deque(maxlen=max_records)
        self._sizes = {path.name: path.stat().st_size for path in directory.iterdir() if path.suffix == SUFFIX}
        self._failing = False

    def begin(self) -> None:
        """Begins a batch; discards unflushed pushes of an earlier one."""
        self._new.clear()

    def add(self, push: Push, refusal: Refusal) -> None:
        """Queues one push for `flush`."""
        self._new.append((push, refusal))

    def flush(self, token: str) -> None:
        """Writes queued pushes durably. The same pushes with the same token are written once, as batches may repeat.

        Raises OSError when the disk is full; a later call retries. After other errors, which are logged, the pushes are
        lost, so that a missing directory does not stop ingest.
        """
        if not self._new:
            return
        try:
            written = [self._write(token, n, push, refusal) for n, (push, refusal) in enumerate(self._new)]
            _sync(written, self._directory)
            self._make_room()
            self._failing = False
        except OSError as exc:
            if exc.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            if not self._failing:
                log.error("cannot write to the quarantine", directory=str(self._directory), error=str(exc))
            self._failing = True
        self._new.clear()

    def _write(self, token: str, number: int, push: Push, refusal: Refusal) -> Path:
        name = f"{push.received_at_ms:020d}-{xxh3_64_hexdigest(f'{token}:{number}'.encode())}{SUFFIX}"
        path = self._directory / name
        self._sizes[name] = path.write_bytes(file_bytes(push, refusal))
        return path

    def _make_room(self) -> None:
        nbytes, oldest_first = sum(self._sizes.values()), deque(sorted(self._sizes))
        while len(self._sizes) > self._max_records or nbytes > self._max_bytes:
            name = oldest_first.popleft()
            (self._directory / name).unlink(missing_ok=True)
            nbytes -= self._sizes.pop(name)


def _sync(paths: list[Path], directory: Path) -> None:
    """Made durable by the commit that follows."""
    if len(paths) > _MAX_SYNCED_ONE_BY_ONE:
        os.sync()
        return
    for path in (*paths, directory):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
