"""The child's side of the pipes to its parent: messages by standard input and output.

Standard output is for messages only: what libraries print goes to standard error.
"""

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, Self

from headroom.logs import configure_logging
from headroom.server.processes.messages import MAX_LINE_BYTES, Message, line_of, message_of

_MAX_UNSENT_BYTES = 4 << 20  # while the parent does not read
_NICENESS = 10


def ignore_signals() -> None:
    """A terminal's Ctrl-C and hangup are for the parent, which decides when this process stops."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)


class ParentThread:
    """For a process without an event loop. Construct it first: it reads the settings and reserves standard output."""

    def __init__(self) -> None:
        self.stopping = threading.Event()  # set when the parent sends stop, or died
        self.is_orphan = False  # the parent died
        self._buffer = bytearray()
        self._output = _reserved_standard_output()
        self._sending = threading.Lock()
        self.settings: dict[str, Any] = self._message() or {}

    def follow(self, heard: Callable[[Message], None] = lambda _: None) -> None:
        """Reads on in a thread, until `stopping`; `heard` gets the messages before, in that thread."""
        threading.Thread(target=self._wait_for_stop, args=(heard,), daemon=True).start()

    def send(self, message: Message) -> None:
        """May be called by any thread. Dropped when the parent died."""
        data = memoryview(line_of(message))
        with self._sending, contextlib.suppress(BrokenPipeError):
            while data:
                data = data[os.write(self._output, data) :]

    def _wait_for_stop(self, heard: Callable[[Message], None]) -> None:
        while (message := self._message()) is not None:
            if "stop" in message:
                break
            heard(message)
        else:
            self.is_orphan = True
        self.stopping.set()

    def _message(self) -> dict[str, Any] | None:
        """Not by sys.stdin.buffer: the interpreter aborts at exit when a daemon thread holds the lock of a buffered
        file."""
        while (end := self._buffer.find(b"\n")) < 0:
            if not (data := os.read(sys.stdin.fileno(), 1 << 16)):
                return None
            self._buffer += data
        first = bytes(self._buffer[: end + 1])
        del self._buffer[: end + 1]
        return message_of(first)


def parent_of_background_process() -> ParentThread:
    """Begins a process without an event loop. Network processes go first, because clients wait for them."""
    ignore_signals()
    parent = ParentThread()
    os.nice(_NICENESS)
    configure_logging()
    return parent


class ParentPipes:
    """For a process with an event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.WriteTransport, lost: asyncio.Event) -> None:
        self._reader = reader
        self._writer = writer
        self._lost = lost

    @classmethod
    async def connect(cls) -> Self:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        output = os.fdopen(_reserved_standard_output(), "wb", buffering=0)
        writer, protocol = await loop.connect_write_pipe(_Lost, output)
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
            self._writer.write(line_of(message))

    async def close(self) -> None:
        """Returns when the parent has read everything, or died."""
        self._writer.close()
        await self._lost.wait()


class _Lost(asyncio.BaseProtocol):
    def __init__(self) -> None:
        self.lost = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


def _reserved_standard_output() -> int:
    ours = os.dup(1)
    os.dup2(2, 1)
    return ours
