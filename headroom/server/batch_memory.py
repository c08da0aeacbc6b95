"""Garbage collection and allocation of a process that holds one large batch after the other."""

from __future__ import annotations

import ctypes
import gc

# A batch keeps hundreds of thousands of objects until it is written. With Python's thresholds each batch causes full
# collections, which visit the caches of all clients: half of the CPU with a million clients.
_GC_THRESHOLDS = (200_000, 20, 100)

# glibc returns the freed arrays of a batch to the system, and each page of the next batch then costs a fault, in all a
# fifth of the CPU. Numbers of mallopt(3).
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_MALLOC_OPTIONS = {_TRIM_THRESHOLD: 256 << 20, _TOP_PAD: 16 << 20, _MMAP_THRESHOLD: 32 << 20}


def tune_for_batches() -> None:
    """Collects garbage rarely; keeps up to 256 MiB of freed memory for the next batch (glibc only)."""
    gc.set_threshold(*_GC_THRESHOLDS)
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for option, value in _MALLOC_OPTIONS.items():
            libc.mallopt(option, value)
