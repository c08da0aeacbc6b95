"""Pushes that could not be kept, as they came, for somebody to look at: a directory of few files, the newest win.

What a file holds, and how it is read: telemetry/ingest/quarantine_reader.py.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

import orjson
import structlog
from xxhash import xxh3_64_hexdigest

from exporters.model import Push
from telemetry.decode.compression import codec_name
from telemetry.decode.decoder import Refusal
from telemetry.ingest.quarantine_reader import SUFFIX

log = structlog.get_logger(__name__)


class Quarantine:
    """At most `max_records` files and `max_bytes` in all; the oldest received go first. One per directory."""

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
        """A batch begins; what another added and did not flush was in vain."""
        self._new.clear()

    def add(self, push: Push, refusal: Refusal) -> None:
        """To be written by `flush`."""
        self._new.append((push, refusal))

    def flush(self, token: str) -> None:
        """Write what was added, bounded. The same under the same token is one: batches may come again."""
        if not self._new:
            return
        try:
            while self._new:
                push, refusal = self._new.popleft()
                name = f"{push.received_at_ms:020d}-{xxh3_64_hexdigest(f'{token}:{len(self._new)}'.encode())}{SUFFIX}"
                self._sizes[name] = (self._directory / name).write_bytes(_file(push, refusal))
            self._make_room()
            self._failing = False
        except OSError as exc:
            if not self._failing:
                log.error("cannot write to the quarantine", directory=str(self._directory), error=str(exc))
            self._failing = True
            self._new.clear()

    def _make_room(self) -> None:
        nbytes, oldest_first = sum(self._sizes.values()), deque(sorted(self._sizes))
        while len(self._sizes) > self._max_records or nbytes > self._max_bytes:
            name = oldest_first.popleft()
            (self._directory / name).unlink(missing_ok=True)
            nbytes -= self._sizes.pop(name)


def _file(push: Push, refusal: Refusal) -> bytes:
    connection = push.connection
    head = {
        "received_at_ms": push.received_at_ms,
        "reason": refusal.reason,
        "cause": refusal.cause,
        "cluster": connection.cluster,
        "principal": connection.principal,
        "client_id": push.client_id,
        "client_instance_id": push.client_instance_id.hex(),
        "software": f"{connection.software_name} {connection.software_version}",
        "source_address": connection.source_address,
        "compression": codec_name(push.compression_type),
        "bytes": len(push.payload),
    }
    return orjson.dumps(head) + b"\n" + push.payload
