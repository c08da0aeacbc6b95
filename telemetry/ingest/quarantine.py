"""Pushes that the store does not accept, unchanged, in a bounded directory; the oldest are removed first.

A file is one line of JSON (time, sender, reason), then the payload as received. `headroom quarantine` reads them.
"""

import dataclasses
import errno
import os
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import structlog
from xxhash import xxh3_64_hexdigest

from exporters.model import Connection, Push
from exporters.spool.positions import sync_path
from telemetry.decode.bounds import codec_name
from telemetry.decode.decoder import Refusal

SUFFIX = ".push"
_MAX_HEAD_BYTES = 1 << 20


class Held(NamedTuple):
    """A push in a quarantine. `facts`: its first line. The end of the file name is its id."""

    path: Path
    facts: dict[str, Any]

    @property
    def id(self) -> str:
        return self.path.stem.rpartition("-")[2]

    def payload(self) -> bytes:
        """The payload as received. Raises OSError."""
        return self.path.read_bytes().partition(b"\n")[2]

    def push(self) -> Push:
        """The push as it was in the spool. Raises OSError, and ValueError when the file is incomplete."""
        facts = self.facts
        try:
            payload = self.payload()
            if len(payload) != facts["bytes"]:
                raise ValueError(
                    f"cannot replay {self.id}: its file has {len(payload)} of {facts['bytes']} bytes of payload"
                )
            return Push(
                connection=Connection(**facts["connection"]),
                client_id=facts["client_id"],
                client_instance_id=bytes.fromhex(facts["client_instance_id"]),
                received_at_ms=facts["received_at_ms"],
                subscription_id=facts["subscription_id"],
                terminating=facts["terminating"],
                compression_type=facts["compression_type"],
                payload=payload,
            )
        except (KeyError, TypeError) as exc:
            raise ValueError(f"cannot replay {self.id}: its file has no {exc}") from exc


def file_bytes(push: Push, refusal: Refusal) -> bytes:
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
        "compression_type": push.compression_type,
        "subscription_id": push.subscription_id,
        "terminating": push.terminating,
        "connection": dataclasses.asdict(connection),
    }
    return orjson.dumps(head) + b"\n" + push.payload


def held(directory: Path) -> Iterator[Held]:
    """All valid files, newest first; skips those that are incomplete or just removed. Raises OSError."""
    for path in sorted((path for path in directory.iterdir() if path.suffix == SUFFIX), reverse=True):
        try:
            with path.open("rb") as file:
                facts = orjson.loads(file.readline(_MAX_HEAD_BYTES))
        except (OSError, orjson.JSONDecodeError):
            continue
        if isinstance(facts, dict):
            yield Held(path, facts)


log = structlog.get_logger(__name__)

_MAX_SYNCED_ONE_BY_ONE = 16


class Quarantine:
    """At most `max_records` files and `max_bytes` in all; the oldest received are removed first. One per directory."""

    def __init__(self, directory: Path, max_records: int, max_bytes: int) -> None:
        """Raises OSError."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory = directory
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._sizes = {path.name: path.stat().st_size for path in directory.iterdir() if path.suffix == SUFFIX}
        self._failing = False

    def write(self, token: str, refused: Sequence[tuple[Push, Refusal]]) -> None:
        """Writes the last of these pushes durably; with the same token once, as batches may repeat.

        Raises OSError when the disk is full; a later call retries. After other errors, which are logged, the pushes are
        lost, so that a missing directory does not stop ingest.
        """
        last = refused[max(0, len(refused) - self._max_records) :]
        try:
            written = []
            for number, (push, refusal) in enumerate(last):
                name = f"{push.received_at_ms:020d}-{xxh3_64_hexdigest(f'{token}:{number}'.encode())}{SUFFIX}"
                written.append(self._directory / name)
                self._sizes[name] = written[-1].write_bytes(file_bytes(push, refusal))
            if len(written) > _MAX_SYNCED_ONE_BY_ONE:
                os.sync()
            else:
                for path in (*written, self._directory):  # the commit that follows relies on them
                    sync_path(path)
            nbytes, oldest_first = sum(self._sizes.values()), deque(sorted(self._sizes))
            while len(self._sizes) > self._max_records or nbytes > self._max_bytes:
                name = oldest_first.popleft()
                (self._directory / name).unlink(missing_ok=True)
                nbytes -= self._sizes.pop(name)
            self._failing = False
        except OSError as exc:
            if exc.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            if not self._failing:
                log.error("cannot write to the quarantine", directory=str(self._directory), error=str(exc))
            self._failing = True
