"""The cores and the memory that this process may use, and how many threads fit into them.

A container on a node of 192 cores sees all of them, but may use half a core, for example. Its limits are in its cgroup
and in the groups above it, of version 1 or 2.
"""

import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

_MIB = 1 << 20
# Of a query of ClickHouse: 64 threads took 1.8 GiB for the levels of a minute, and others run beside it.
THREAD_BYTES = 128 * _MIB
_UNLIMITED_BYTES = 1 << 60  # version 1 writes the largest multiple of a page


def threads(memory_bytes: int = sys.maxsize, thread_bytes: int = THREAD_BYTES, root: Path = Path("/")) -> int:
    """How many threads of `thread_bytes` fit into `memory_bytes`, and into what this machine has: one at least, and no
    more than there are cores for. For a program that runs here; another machine has other cores."""
    memory = min(memory_bytes, available_memory(root))
    return max(min(math.ceil(available_cores(root)), memory // thread_bytes), 1)


def available_cores(root: Path = Path("/")) -> float:
    """Less than one in a container with a part of a core."""
    has_affinity = hasattr(os, "sched_getaffinity")  # not on macOS
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return min((float(cores), *_limits(root, "cpu", _cores)))


def available_memory(root: Path = Path("/")) -> int:
    """In bytes."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(min((physical, *_limits(root, "memory", _memory))))


def _limits(root: Path, controller: str, read: Callable[[Path], float | None]) -> Iterator[float]:
    """The limits of this process' group and of those above it."""
    for directory in _groups(root, controller):
        try:
            limit = read(directory)
        except (OSError, ValueError, IndexError, ZeroDivisionError):  # no such file, or no number
            continue
        if limit is not None and limit > 0:
            yield limit


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The directories of this process' groups that may have limits. In a container the path may be that of the host,
    and what is mounted is the group itself."""
    mounted = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, named = line.partition(":")
        controllers, _, path = named.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        tops = (mounted / controllers, mounted / controller) if controllers else (mounted, mounted / "unified")
        inside = Path(path.lstrip("/"))
        for top in tops:
            yield from (top / group for group in (inside, *inside.parents))


def _cores(directory: Path) -> float | None:
    """None for no limit. Raises OSError, ValueError, IndexError, ZeroDivisionError."""
    if (file := directory / "cpu.max").exists():
        quota, period = file.read_text().split()[:2]
        return None if quota == "max" else int(quota) / int(period)
    quota = (directory / "cpu.cfs_quota_us").read_text()
    return int(quota) / int((directory / "cpu.cfs_period_us").read_text())  # -1: no limit


def _memory(directory: Path) -> float | None:
    """None for no limit. Raises OSError, ValueError."""
    if (file := directory / "memory.max").exists():
        text = file.read_text().strip()
        return None if text == "max" else int(text)
    limit = int((directory / "memory.limit_in_bytes").read_text())
    return limit if limit < _UNLIMITED_BYTES else None
