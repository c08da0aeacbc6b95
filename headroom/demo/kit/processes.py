"""Child processes that never outlive us, and that a Ctrl-C in the terminal does not reach before we stop them."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

LOOPBACK = "127.0.0.1"

# Runs in the child before the program: a session of its own keeps the terminal's Ctrl-C away, PR_SET_PDEATHSIG (1)
# lets the kernel kill it with us. A launcher and no preexec_fn: that one is unsafe beside threads.
# Where there is no prctl (macOS) only the orderly stop remains.
_LAUNCHER = """
import ctypes, os, signal, sys
libc = ctypes.CDLL(None)
if hasattr(libc, "prctl"):
    libc.prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""


def start(
    argv: Sequence[str],
    *,
    stderr: IO[bytes] | int,
    stdout: IO[bytes] | int | None = None,
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start `argv` in a session of its own; its stdout goes where stderr goes unless said otherwise.

    The child dies with the *thread* that started it (prctl(2)): call this from a thread that lives as long as it.
    """
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *argv],
        stdin=stdin,
        stdout=stderr if stdout is None else stdout,
        stderr=stderr,
        bufsize=0,  # what `first_line` leaves must stay for the next reader
        start_new_session=True,
    )


def stop(process: subprocess.Popen[bytes], grace_s: float = 10.0) -> int:
    """SIGTERM to the process, SIGKILL after `grace_s`; then SIGKILL to what it left behind in its session.

    Returns the exit status. Closes our ends of its pipes.
    """
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left; macOS says it the other way
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def first_line(process: subprocess.Popen[bytes], timeout_s: float) -> str:
    """The first line on stdout, by which a process reports that it is ready; empty when it ends or is too slow."""
    assert process.stdout is not None  # a pipe, or there is nothing to read
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if not selector.select(timeout_s):
            return ""
    return process.stdout.readline().decode(errors="replace").strip()


def free_ports(count: int) -> list[int]:
    """Ports on the loopback address that nobody listened on a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for endpoint in sockets:
            endpoint.bind((LOOPBACK, 0))
        return [endpoint.getsockname()[1] for endpoint in sockets]
    finally:
        for endpoint in sockets:
            endpoint.close()


def complaint(log: Path) -> str:
    """The line of a log that best says what went wrong, for an error message."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()] if log.exists() else []
    for word in ("Exception", "ERROR", "Error", ""):
        said = [line for line in lines if line and word in line and not line.startswith("at ")]
        if said:
            return said[-1]
    return "it said nothing"
