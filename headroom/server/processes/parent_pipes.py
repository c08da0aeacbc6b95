"""A network process's standard input and output, which are its parent's ends of two pipes."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from headroom.server.processes.messages import MAX_LINE_BYTES, Message, line, message_of

_MAX_UNSENT_BYTES = 4 << 20  # to a parent that does not listen


class ParentPipes:
    """Messages in and out. Standard output is for them alone: whatever a library prints goes to standard error."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.WriteTransport, lost: asyncio.Event) -> None:
        self._reader = reader
        self._writer = writer
        self._lost = lost

    @classmethod
    async def connect(cls) -> ParentPipes:
        loop = asyncio.get_running_loop()
        ours = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        writer, protocol = await loop.connect_write_pipe(_Lost, ours)
        return cls(reader, writer, protocol.lost)

    async def message(self) -> dict[str, Any] | None:
        """The next one; None when the parent is dead."""
        try:
            return message_of(await self._reader.readline())
        except OSError:
            return None

    @property
    def is_overfull(self) -> bool:
        """Whether the parent does not keep up: what can wait shall."""
        return self._writer.get_write_buffer_size() > _MAX_UNSENT_BYTES

    def tell(self, message: Message) -> None:
        """Leaves when the parent reads it; lost when it is dead."""
        if not self._lost.is_set():
            self._writer.write(line(message))

    async def close(self) -> None:
        """Returns when everything was read, or the parent is dead."""
        self._writer.close()
        await self._lost.wait()


class _Lost(asyncio.BaseProtocol):
    def __init__(self) -> None:
        self.lost = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()
