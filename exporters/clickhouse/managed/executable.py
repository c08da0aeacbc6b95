"""Finds the managed server's program: the configured one, `clickhouse` on PATH, or the server in the chdb wheel."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

_LIBRARY = "_chdb.abi3.so"
_GUARD = Path(__file__).with_name("write_guard.so")


class ServerError(Exception):
    """The server cannot be found or cannot start; the message is one line and says what to do."""


def find_program(configured: Path | None) -> str:
    """The path of an executable or of the wheel's library. Raises ServerError."""
    if configured is not None:
        if configured.is_file() and os.access(configured, os.X_OK):
            return str(configured.resolve())
        raise ServerError(f"cannot run ClickHouse: {configured} is not an executable file")
    if installed := shutil.which("clickhouse"):
        return installed
    # Does not import chdb, which would load 800 MB into this process.
    spec = importlib.util.find_spec("chdb") if sys.platform == "linux" else None
    directories = (spec.submodule_search_locations if spec else None) or ()
    libraries = [Path(directory) / _LIBRARY for directory in directories]
    library = next((library for library in libraries if library.is_file()), None)
    if library is None:
        install = "install headroom[embedded] or a clickhouse executable on PATH"
        if sys.platform != "linux":
            install = "install a clickhouse executable on PATH (chdb has no server for this system)"
        raise ServerError(f"cannot find a ClickHouse server: {install}, or name a server with --clickhouse")
    return str(library)


def is_library(program: str) -> bool:
    """Whether it is the server in the chdb wheel, which ignores failed writes unless `write_guard` is preloaded."""
    return program.endswith(".so")


def write_guard() -> Path | None:
    """The library that ends a process when a write to a file fails; None where it is not compiled, or not Linux."""
    return _GUARD if sys.platform == "linux" and _GUARD.is_file() else None
