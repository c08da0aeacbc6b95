"""Which version a `java` is, from what `java -version` prints. Imports nothing of Spark."""

from __future__ import annotations

import re
import subprocess

_TIMEOUT_S = 30


def java_version(java: str) -> int:
    """Major version of a `java`, 0 when it does not run or prints no version."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    return java_major(done.stderr)


def java_major(banner: str) -> int:
    """17 of what `java -version` prints, 8 of the old `1.8.0_392`; 0 when there is no version in it."""
    match = re.search(r'version "(?:1\.)?(\d+)', banner)
    return int(match[1]) if match else 0
