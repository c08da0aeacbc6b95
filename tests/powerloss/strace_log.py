"""Reads the log of `strace -f -yy -xx`: one call per entry, with the lines at which it begins and ends."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

# Calls that change files and names, sync them, and send responses.
CALLS = (
    "openat,open,creat,write,pwrite64,writev,pwritev,lseek,ftruncate,fallocate,rename,renameat,renameat2,link,unlink,"
    "unlinkat,mkdir,mkdirat,fsync,fdatasync,sendto,sendmsg"
)
COMMAND = ["strace", "-D", "-f", "--seccomp-bpf", "-qq", "-yy", "-xx", "-s", "200000", "-e", f"trace={CALLS}"]

_CALL = re.compile(r"(\d+) +(\w+)\((.*)")
_RESUMED = re.compile(r"(\d+) +<\.\.\. (\w+) resumed>(.*)")
_UNFINISHED = " <unfinished ...>"
_RESULT = re.compile(r"\) += (-?\d+)(?:<.*>)?[^=]*$")
_DESCRIPTOR = re.compile(r"^(\d+|AT_FDCWD)(?:<(TCP[^\]]*\]|(?:\\x[0-9a-f]{2})*|[^>]*)>)?")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_ESCAPED = re.compile(r"(?:\\x[0-9a-f]{2})+")


@dataclass(frozen=True)
class Call:
    """A system call that succeeded. `begin` and `end` are line numbers: the call took effect between them."""

    begin: int
    end: int
    name: str
    arguments: str
    result: int

    @property
    def descriptor(self) -> int:
        """The first argument, a file descriptor."""
        first = _DESCRIPTOR.match(self.arguments)
        assert first is not None and first[1] is not None, self.arguments[:100]
        return int(first[1])

    # Cached, because the calls of a trace are replayed for each power loss.
    @cached_property
    def opened_as(self) -> str:
        """Path or TCP addresses of the first argument; "" for pipes and similar."""
        first = _DESCRIPTOR.match(self.arguments)
        text = first[2] if first is not None and first[2] else ""
        return _bytes(text).decode() if _ESCAPED.fullmatch(text) else text

    @cached_property
    def strings(self) -> list[bytes]:
        """The string arguments: paths, or data."""
        return [_bytes(text) for text in _STRING.findall(self.arguments)]

    @cached_property
    def paths(self) -> list[str]:
        """Absolute paths among the arguments; those relative to a directory descriptor are joined to it."""
        texts = [text.decode() for text in self.strings]
        return [text if text.startswith("/") else f"{self.opened_as}/{text}" for text in texts]

    @property
    def numbers(self) -> list[int]:
        """The integers among the arguments after the first."""
        return [int(text) for text in self.arguments.split(", ")[1:] if re.fullmatch(r"-?\d+", text)]


def calls(lines: Iterable[str]) -> Iterator[Call]:
    """The calls that succeeded, in the order in which they end. Those that never end come last, with result -1: they
    may or may not have taken effect."""
    begun: dict[str, tuple[int, str, str]] = {}
    number = 0
    for number, line in enumerate(lines):
        resumed = _RESUMED.match(line)
        if resumed is not None:
            begin, name, head = begun.pop(resumed[1], (number, resumed[2], ""))
            rest = head + resumed[3]
        else:
            call = _CALL.match(line)
            if call is None:
                continue
            begin, name, rest = number, call[2], call[3]
            if line.rstrip().endswith(_UNFINISHED):
                begun[call[1]] = (number, name, rest.rstrip().removesuffix(_UNFINISHED))
                continue
        result = _RESULT.search(rest)
        if result is not None and int(result[1]) >= 0:
            yield Call(begin, number, name, rest[: result.start()], int(result[1]))
    for begin, name, rest in begun.values():
        yield Call(begin, number + 1, name, rest, -1)


def _bytes(escaped: str) -> bytes:
    return bytes.fromhex(escaped.replace("\\x", ""))
