"""A command in a pseudo terminal of a given size: what it prints there, and keys that are typed."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>()][0-9A-Za-z]?")
_ROOT = Path(__file__).parents[3]
_PATIENCE_S = 120.0


class PseudoTerminal:
    """A context manager; the command sees a terminal of `columns` x `rows`. Killed at the end if it still runs."""

    def __init__(self, argv: Sequence[str], columns: int, rows: int) -> None:
        self._argv = argv
        self._size = struct.pack("HHHH", rows, columns, 0, 0)
        self._environment = {
            **{name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")},
            "TERM": "xterm-256color",
        }
        self.raw = ""

    def __enter__(self) -> Self:
        self._child, self._own = pty.fork()
        if self._child == 0:
            try:
                signal.signal(signal.SIGINT, signal.SIG_DFL)  # the shell of a background job ignores it
                fcntl.ioctl(0, termios.TIOCSWINSZ, self._size)
                os.chdir(_ROOT)
                os.execvpe(self._argv[0], list(self._argv), self._environment)
            finally:
                os._exit(127)
        fcntl.ioctl(self._own, termios.TIOCSWINSZ, self._size)
        return self

    def __exit__(self, *_: object) -> None:
        if not hasattr(self, "code"):
            os.kill(self._child, 9)
            os.waitpid(self._child, 0)
        os.close(self._own)

    def type(self, keys: str) -> None:
        os.write(self._own, keys.encode())

    def wait_for(self, text: str) -> str:
        """The screen, once it contains `text`."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while text not in self.frame:
            assert time.monotonic() < deadline_s, f"no {text!r} in {self.frame!r}"
            if not self._read(1.0):
                raise AssertionError(f"ended without {text!r}: {self.frame!r}")
        return self.frame

    @property
    def frame(self) -> str:
        """The screen as it was drawn from its top to its end the last time."""
        drawn = self.raw.rpartition("\x1b[J")[0]
        return plain(drawn.rpartition("\x1b[H")[2])

    def end(self) -> int:
        """Reads until the command ends; its exit code."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while self._read(1.0):
            assert time.monotonic() < deadline_s, self.frame
        self.code = os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1])
        return self.code

    def _read(self, timeout_s: float) -> bool:
        """False at the end of the output."""
        if not select.select([self._own], [], [], timeout_s)[0]:
            return True
        try:
            read = os.read(self._own, 65_536)
        except OSError:  # Linux: EIO when the other side is closed
            return False
        self.raw += read.decode("utf-8", "replace")
        return bool(read)


def plain(text: str) -> str:
    return _CONTROLS.sub("", text).replace("\r\n", "\n")


def shown_by(arguments: Sequence[str], columns: int, rows: int) -> tuple[int, list[str]]:
    """Exit code and lines of `headroom ARGUMENTS` in a terminal of this size."""
    with PseudoTerminal([sys.executable, "-m", "headroom", *arguments], columns, rows) as terminal:
        code = terminal.end()
        return code, plain(terminal.raw).splitlines()
