"""A process beside the bench that answers lines, and programs in C that are compiled once."""

import subprocess
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Self

import psutil


class Child:
    """A context manager."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        self.process = psutil.Process(self._process.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()

    def line(self) -> str:
        """Raises RuntimeError when it has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise RuntimeError("a process of the bench ended")
        return line

    def ask(self, text: str) -> str:
        """The answer to a line. Raises RuntimeError when it has ended."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()
        return self.line()


def compiled(source: Path, *options: str) -> str:
    """Path of the program; compiles it if this source has not been compiled so yet."""
    made_of = sha256(source.read_bytes() + " ".join(options).encode()).hexdigest()[:12]
    target = Path("build") / f"{source.stem}-{made_of}"
    if not target.exists():
        target.parent.mkdir(exist_ok=True)
        subprocess.run(["cc", "-O2", "-o", target, source, *options], check=True, timeout=60)
    return str(target.absolute())
