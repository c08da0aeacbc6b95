"""What Headroom does not run on, in one line, before anything is loaded: `python headroom/platforms.py`.

It runs before the packages are there, so it needs the standard library only, of any release of Python 3.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
from typing import NamedTuple


class Platform(NamedTuple):
    python: tuple[int, ...]
    abi: str  # as in the names of extension modules: cpython-312-x86_64-linux-musl
    system: str  # sys.platform
    machine: str
    is_free_threaded: bool
    has_clickhouse: bool  # an executable on PATH


def this_platform() -> Platform:
    import platform

    return Platform(
        sys.version_info[:2],
        str(sysconfig.get_config_var("SOABI")),
        sys.platform,
        platform.machine(),
        bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        shutil.which("clickhouse") is not None,
    )


def obstacle(of: Platform) -> str | None:
    """Why the locked packages do not install or the managed ClickHouse does not start; None if they do."""
    if of.python < (3, 11):
        return f"Python 3.11 or newer is needed, {sys.executable} is {'.'.join(map(str, of.python))}; set PYTHON=..."
    if of.is_free_threaded:
        return (
            f"{sys.executable} is a free-threaded Python, for which google-re2 has no wheels; set PYTHON=... to another"
        )
    if "musl" in of.abi:
        return "google-re2, confluent-kafka and vl-convert have no wheels for Alpine (musl): use a system with glibc"
    if of.system == "darwin" and of.machine == "x86_64":
        return "the locked packages have no wheels for Intel Macs: see docs/install.md for what works there"
    if of.system == "darwin" and not of.has_clickhouse:
        return "chdb has no ClickHouse server for macOS: install the program `clickhouse` and have it on PATH, first"
    return None


if __name__ == "__main__":
    refusal = obstacle(this_platform())
    sys.exit(f"headroom: {refusal}" if refusal else 0)
