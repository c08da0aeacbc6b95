"""The parent's side of every child process: starts it, exchanges messages, restarts it when it dies, stops it.

The kinds of processes differ in values (ChildValues) and in what they do with a message. ClickHouse has no messages:
it is ready when it answers.
"""

import asyncio
import contextlib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import structlog

from headroom import interpreted
from headroom.errors import ServeError
from headroom.server.processes.messages import MAX_LINE_BYTES, STOP, Message, line_of, message_of

log = structlog.get_logger(__name__)

_POLL_S = 0.05
_WAITS = 6  # for a message, in `silent_s`

# What a child process may read of the parent's environment. Settings come by its first message, so no password or
# token is among them. LD_ and FAKETIME: a preloaded library and its settings apply to all processes of a service.
_PASSED = frozenset(
    "PATH HOME USER LANG LANGUAGE TZ TZDIR TMPDIR VIRTUAL_ENV HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY SSL_CERT_FILE"
    f" SSL_CERT_DIR OPENSSL_CONF {interpreted.VARIABLE}".split()
)
_PASSED_PREFIXES = ("LC_", "LD_", "FAKETIME", "PYTHON", "MALLOC_", "GRPC_")


class ChildError(ServeError):
    """A child process does not start."""


@dataclass(frozen=True, slots=True)
class ChildValues:
    """What differs between the kinds of processes. `answers`: for a process without messages, whether it is ready; its
    output goes to the file `output`, and it leads a session of its own, so that Ctrl-C does not reach it. `silent_s`: a
    process that sends no message for so long is killed."""

    title: str  # as in "the storage worker ended"
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=lambda: passed_environment())
    restart_after_s: float = 1.0  # doubled after each failed start
    restart_after_max_s: float = 30.0
    start_timeout_s: float = 60.0
    silent_s: float = math.inf
    answers: Callable[[], bool] | None = None
    output: Path | None = None
    cause: Callable[[int], str] = lambda _: ""  # why it ended with this exit code


class ChildProcess:
    """One process at a time. Call `start`, or let `watch` do it; then `watch` until `stop`."""

    def __init__(
        self,
        values: ChildValues,
        *,
        first: Callable[[], Message] = dict,
        heard: Callable[[Message], None] = lambda _: None,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        """`first`: the first message to each process. `heard` gets its messages; `ended` is called before a restart."""
        self.alive = False  # ready, and not ended
        self.restarts = 0
        self._values = values
        self._first = first
        self._heard = heard
        self._ended = ended
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    async def start(self) -> None:
        """Returns when it is ready. Raises ChildError."""
        values = self._values
        pipe: int | IO[Any] = asyncio.subprocess.PIPE
        try:
            with contextlib.ExitStack() as stack:
                output = stack.enter_context(values.output.open("wb")) if values.output else None
                self._process = await asyncio.create_subprocess_exec(
                    *values.argv,
                    env=values.environment,
                    stdin=pipe if output is None else asyncio.subprocess.DEVNULL,
                    stdout=pipe if output is None else output,
                    stderr=None if output is None else output,
                    start_new_session=output is not None,
                    limit=MAX_LINE_BYTES,
                )
        except OSError as exc:
            raise ChildError(f"cannot start {values.title}: {exc.strerror}") from exc
        self.send(self._first())
        try:
            async with asyncio.timeout(values.start_timeout_s):
                await self._until_ready(self._process)
        except TimeoutError as exc:
            self.kill()
            await self._process.wait()
            raise ChildError(f"{values.title} was not ready within {values.start_timeout_s:.0f} s") from exc
        self.alive = True

    async def watch(self) -> None:
        """Hears its messages, and starts it again when it dies. Runs until `stop`."""
        if self._process is None:
            await self._start_again()
        while self._process is not None and not (self.is_stopping and self._process.returncode is not None):
            if self._values.answers is None:
                while message := await self._message(self._process):
                    self._heard(message)
            code = await self._process.wait()
            self.alive = False
            self._ended()
            if self.is_stopping:
                return
            cause = {"cause": text} if (text := await asyncio.to_thread(self._values.cause, code)) else {}
            log.error(f"{self._values.title} ended, restarting it", exit_code=code, **cause)
            self.restarts += 1
            await self._start_again()
        self.alive = False  # it ended before anybody watched

    def send(self, message: Message) -> None:
        """Sends a message if the process runs; one that is started later gets everything in its first message."""
        process = self._process
        if process is not None and process.returncode is None and process.stdin is not None:
            with contextlib.suppress(RuntimeError, OSError):  # it just ended
                process.stdin.write(line_of(message))

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def stop(self, timeout_s: float) -> bool:
        """Asks the process to end and kills it after `timeout_s`. Returns whether it ended by itself."""
        self._stopping.set()
        process = self._process
        if process is None or process.returncode is not None:
            return True
        if process.stdin is not None:
            self.send(STOP)
            process.stdin.close()
        else:
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), timeout_s)
        except TimeoutError:
            self.kill()
            await process.wait()
            return False
        return True

    async def _until_ready(self, process: asyncio.subprocess.Process) -> None:
        values = self._values
        if values.answers is not None:
            while process.returncode is None:
                if await asyncio.to_thread(values.answers):
                    return
                await asyncio.sleep(_POLL_S)
        while message := await self._message(process):
            if "error" in message:
                await process.wait()
                raise ChildError(message["error"])
            self._heard(message)
            if "ready" in message:
                return
        code = await process.wait()
        cause = await asyncio.to_thread(values.cause, code)
        raise ChildError(f"{values.title} ended with code {code}{cause and ': '}{cause}")

    async def _message(self, process: asyncio.subprocess.Process) -> Message | None:
        """The next message; None at the end. A process that is silent for too long is killed.

        Waits several times: when this event loop was busy for longer than a wait, the next wait finds the message that
        arrived meanwhile. One turn can take that long when tens of thousands of connections send at once.
        """
        if process.stdout is None:
            return None
        wait_s = self._values.silent_s / _WAITS
        for _ in range(_WAITS):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if self.is_stopping or math.isinf(wait_s) else wait_s):
                    return message_of(await process.stdout.readline())
        log.error(f"{self._values.title} is silent, killing it")
        self.kill()
        return None

    async def _start_again(self) -> None:
        after_s = self._values.restart_after_s
        while not self.alive:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), after_s if self._process is not None else 0)
            if self.is_stopping:
                return
            try:
                await self.start()
            except ChildError as exc:
                log.error(f"{self._values.title} does not start", error=str(exc))
                after_s = min(2 * after_s, self._values.restart_after_max_s)


def passed_environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name.upper() in _PASSED or name.upper().startswith(_PASSED_PREFIXES)
    }
