"""Reads the files of a quarantine: one line of JSON (time, sender, reason), then the payload as received.

telemetry/ingest/quarantine.py writes them, `headroom quarantine` reads them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from exporters.model import Connection, Push
from telemetry.decode.compression import codec_name
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
    """The content of a file."""
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
