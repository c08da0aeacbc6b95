"""Child processes that die with this process and do not receive the terminal's Ctrl-C; parts that are made of them."""

import contextlib
import fcntl
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Self

LOOPBACK = "127.0.0.1"
_PORTS = range(12_000, 32_768)

# Runs in the child before the program: its own session shields it from the terminal's Ctrl-C, and with PR_SET_PDEATHSIG
# (1) the kernel kills it with its parent. A launcher instead of preexec_fn, which is unsafe with threads.
# Without prctl (macOS) only an orderly stop ends the child.
_LAUNCHER = """
import ctypes, os, signal, sys
libc = ctypes.CDLL(None)
if hasattr(libc, "prctl"):
    libc.prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""


class DemoError(Exception):
    """A part of the demo failed, or Java or the Kafka jars are missing; the message is one line."""


class Service(ABC):
    """A context manager. It is stopped even when it fails to start, because parts of it may be running."""

    @abstractmethod
    def start(self) -> None:
        """Returns when the service is usable. Raises DemoError."""

    @abstractmethod
    def stop(self) -> None:
        """Stops everything that was started."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:  # cleans up and re-raises
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def start(
    argv: Sequence[str],
    *,
    stderr: IO[bytes] | int,
    stdout: IO[bytes] | int | None = None,
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Starts `argv` in its own session; its stdout goes to stderr's target by default.

    The child dies with the *thread* that started it (prctl(2)), so that thread must outlive it.
    """
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *argv],
        stdin=stdin,
        stdout=stderr if stdout is None else stdout,
        stderr=stderr,
        bufsize=0,  # `first_line` must not consume more than one line
        start_new_session=True,
    )


def stop(process: subprocess.Popen[bytes], grace_s: float = 10.0) -> int:
    """Sends SIGTERM, SIGKILL after `grace_s`, then SIGKILL to the rest of its session.

    Returns the exit status. Closes the pipes.
    """
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
    with contextlib.suppress(ProcessLookupError, PermissionError):  # no process is left; macOS reports EPERM
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def first_line(process: subprocess.Popen[bytes], timeout_s: float) -> str:
    """The first line on stdout, which reports readiness; empty when the process ends or is too slow."""
    assert process.stdout is not None  # the caller asked for a pipe
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if not selector.select(timeout_s):
            return ""
    return process.stdout.readline().decode(errors="replace").strip()


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of the loopback address."""
    with socket.socket() as endpoint:
        endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            endpoint.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """Ports on the loopback address that were free a moment ago.

    Not of the range from which systems take ports of outgoing connections: those may be taken before they are used.
    """
    with contextlib.ExitStack() as bound:
        ports: list[int] = []
        while len(ports) < count:
            port = secrets.choice(_PORTS)
            endpoint = bound.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                endpoint.bind((LOOPBACK, port))
                ports.append(port)
        return ports


@contextlib.contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Holds the lock of a directory (flock(2)); other processes that want it wait."""
    held = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def complaint(log: Path) -> str:
    """The line of a log that best explains a failure, for an error message."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()] if log.exists() else []
    for word in ("Exception", "ERROR", "Error", ""):
        said = [line for line in lines if line and word in line and not line.startswith("at ")]
        if said:
            return said[-1]
    return "it said nothing"
