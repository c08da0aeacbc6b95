"""What Headroom does not run on, in one line, before anything is loaded: `python headroom/platforms.py`.

It runs before the packages are there, so it needs the standard library only, of any release of Python 3.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
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
    java: int  # the version of that in JAVA_HOME, else on PATH; 0: none that runs


def this_platform() -> Platform:
    import platform

    return Platform(
        sys.version_info[:2],
        str(sysconfig.get_config_var("SOABI")),
        sys.platform,
        platform.machine(),
        bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        shutil.which("clickhouse") is not None,
        _java_version(),
    )


def _java_version() -> int:
    home = os.environ.get("JAVA_HOME")
    command = [os.path.join(home, "bin", "java") if home else "java", "-version"]  # noqa: PTH118 - of any release
    try:
        said = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return 0  # on macOS also of the program that is there without Java
    match = re.search(rb'version "(?:1\.)?(\d+)', said)
    return int(match.group(1)) if match else 0


def obstacle(of: Platform, *, needs_java: bool = False) -> str | None:
    """Why the locked packages do not install, the managed ClickHouse does not start, or the demo does not run; None if
    they do."""
    if of.python < (3, 11):
        return f"Python 3.11 or newer is needed, {sys.executable} is {'.'.join(map(str, of.python))}; set PYTHON=..."
    if of.python >= (3, 15):
        return f"google-re2 and other locked packages have no wheels for {sys.executable}: set PYTHON=python3.14"
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
    if needs_java and of.java < 17:
        seen = f"Java {of.java}" if of.java else "none that runs"
        return f"the demo needs Java 17 or newer, in JAVA_HOME or on PATH: there is {seen}"
    return None


if __name__ == "__main__":
    refusal = obstacle(this_platform(), needs_java="java" in sys.argv)
    sys.exit(f"headroom: {refusal}" if refusal else 0)
