"""What lies in a quarantine, for somebody to look at: files that `telemetry/ingest/quarantine.py` wrote.

A file is one line of JSON (when, who, why) and behind it the payload as it was received.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson

SUFFIX = ".push"
_MAX_HEAD_BYTES = 1 << 20


class Held(NamedTuple):
    """A push in a quarantine. `facts`: what its first line says. The end of its name is its id."""

    path: Path
    facts: dict[str, Any]

    @property
    def id(self) -> str:
        return self.path.stem.rpartition("-")[2]

    def payload(self) -> bytes:
        """As it was received. Raises OSError."""
        return self.path.read_bytes().partition(b"\n")[2]


def held(directory: Path) -> Iterator[Held]:
    """All that can be read, the newest first: one may be half written, or go while we look. Raises OSError."""
    for path in sorted((path for path in directory.iterdir() if path.suffix == SUFFIX), reverse=True):
        try:
            with path.open("rb") as file:
                facts = orjson.loads(file.readline(_MAX_HEAD_BYTES))
        except (OSError, orjson.JSONDecodeError):
            continue
        if isinstance(facts, dict):
            yield Held(path, facts)
