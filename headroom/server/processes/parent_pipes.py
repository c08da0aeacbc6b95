"""The pipes between a process and its parent: the process's standard input and output."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from headroom.server.processes.messages import MAX_LINE_BYTES, Message, line, message_of

_MAX_UNSENT_BYTES = 4 << 20  # while the parent does not read


def wait_for_end_of_input() -> None:
    """Returns when the parent closes standard input, or dies. For threads of processes without an event loop.

    Not by sys.stdin.buffer: the interpreter aborts at exit when a daemon thread holds the lock of a buffered file.
    """
    while os.read(sys.stdin.fileno(), 1024):
        pass


class ParentPipes:
    """A network process's messages. Standard output is for messages only; output of libraries goes to stderr."""

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
        """The next message; None when the parent died."""
        try:
            return message_of(await self._reader.readline())
        except OSError:
            return None

    @property
    def is_overfull(self) -> bool:
        """Whether the parent reads too slowly, so that messages that can wait should not be sent."""
        return self._writer.get_write_buffer_size() > _MAX_UNSENT_BYTES

    def send(self, message: Message) -> None:
        """Queues a message; dropped when the parent died."""
        if not self._lost.is_set():
            self._writer.write(line(message))

    async def close(self) -> None:
        """Returns when the parent has read everything, or died."""
        self._writer.close()
        await self._lost.wait()


class _Lost(asyncio.BaseProtocol):
    def __init__(self) -> None:
        self.lost = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()
