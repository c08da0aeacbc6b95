"""The version of a `java` executable, from `java -version`. Does not import Spark."""

from __future__ import annotations

import re
import subprocess

_TIMEOUT_S = 30


def java_version(java: str) -> int:
    """Major version of a `java` executable; 0 if it does not run or prints no version."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    return java_major(done.stderr)


def java_major(banner: str) -> int:
    """Parses the output of `java -version`: the major version (8 for the old `1.8.0_392`), 0 if there is none."""
    match = re.search(r'version "(?:1\.)?(\d+)', banner)
    return int(match[1]) if match else 0
