"""What a process may take: open files, what malloc keeps, how often garbage is collected, no core dump."""

import contextlib
import ctypes
import gc
import resource
from typing import Final

HTTP_CONNECTIONS: Final = 256  # open files at the HTTP address: pages, probes, scrapes

# A batch keeps hundreds of thousands of objects until it is written. With Python's thresholds each batch causes full
# collections, which visit the caches of all clients: half of the CPU with a million clients.
_GC_THRESHOLDS = (200_000, 20, 100)

# glibc returns the freed arrays of a batch to the system, and each page of the next batch then costs a fault, in all a
# fifth of the CPU. Numbers of mallopt(3).
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_FOR_BATCHES = {_TRIM_THRESHOLD: 256 << 20, _TOP_PAD: 16 << 20, _MMAP_THRESHOLD: 32 << 20}

# uvloop allocates 256 kB for each read of TLS, and gives back what it did not need. By default that is mmap, mremap,
# munmap and page faults for each record, until a freed block has raised glibc's threshold.
_FOR_CONNECTIONS = {_TRIM_THRESHOLD: 8 << 20, _MMAP_THRESHOLD: 1 << 20}

_MOST_FILES = 1 << 20  # Linux' default of fs.nr_open

_PR_SET_DUMPABLE = 4  # prctl(2)


def tune_for_batches() -> None:
    """Collects garbage rarely; keeps up to 256 MiB of freed memory for the next batch (glibc only)."""
    gc.set_threshold(*_GC_THRESHOLDS)
    _set_malloc(_FOR_BATCHES)


def tune_for_connections() -> None:
    """Keeps up to 8 MiB of freed memory for the next bytes of connections (glibc only)."""
    _set_malloc(_FOR_CONNECTIONS)


def forbid_core_dumps() -> None:
    """No core dump of this process is written, and only a process with CAP_SYS_PTRACE reads its memory.

    The memory of network processes has passwords: tokens of SASL/PLAIN while they are forwarded, and afterwards in
    freed memory; and those of Headroom's own connections. Lasts until execve(2): child processes call it again.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):  # Linux: also where core dumps go to a program, which the limit does not affect
        libc.prctl(_PR_SET_DUMPABLE, 0)


def _set_malloc(options: dict[int, int]) -> None:
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for option, value in options.items():
            libc.mallopt(option, value)


def allow_open_files() -> None:
    """Raises the soft limit, usually 1024 because of select(2), to the hard limit, or as far as the system lets it:
    macOS has a hard limit of infinity, and refuses more than kern.maxfilesperproc. Children inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    smaller = (_MOST_FILES >> halvings for halvings in range(_MOST_FILES.bit_length()))
    for limit in (hard, *(limit for limit in smaller if limit > soft)):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            return


def open_files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_FILES if soft == resource.RLIM_INFINITY else soft
