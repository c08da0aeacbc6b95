"""Faults by a library that is preloaded (ld.so(8)) into the processes of `headroom serve`.

Calls on chosen files fail, and the wall clock is set.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import struct
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

READS, WRITES = 1, 2  # as faults.c has them
_SOURCE = Path(__file__).with_name("faults.c")
_MAPPED_BYTES = 4096
_CALLS_AT, _ERROR_AT = 8, 9  # behind the offset of the clock


class Preloaded:
    """What happens to processes that have `environment`."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        library, faults = directory.absolute() / "faults.so", directory.absolute() / "faults"
        subprocess.run(["cc", "-O2", "-Wall", "-shared", "-fPIC", "-o", str(library), str(_SOURCE)], check=True)
        faults.write_bytes(bytes(_MAPPED_BYTES))
        with faults.open("r+b") as file:
            self._faults = mmap.mmap(file.fileno(), _MAPPED_BYTES)
        self.environment = {"LD_PRELOAD": str(library), "LD_FAULTS": str(faults)}

    @contextlib.asynccontextmanager
    async def failing(self, calls: int, error: int, part: str) -> AsyncIterator[None]:
        """Calls on files fail whose path has this part."""
        named = part.encode() + b"\0"
        self._faults[_ERROR_AT : _ERROR_AT + 1 + len(named)] = bytes([error]) + named
        self._faults[_CALLS_AT] = calls
        try:
            yield
        finally:
            self._faults[_CALLS_AT] = 0

    async def step_clock(self, offset_s: int, seconds: float) -> None:
        """Sets the wall clock, and back after some time. The monotonic clock goes on."""
        self._set_clock(offset_s)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._set_clock(0)

    def _set_clock(self, offset_s: int) -> None:
        self._faults[:_CALLS_AT] = struct.pack("=q", offset_s)
