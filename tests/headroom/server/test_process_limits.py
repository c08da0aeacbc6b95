"""Core dumps, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

from headroom.config.settings import ServeConfig

_FORBIDDEN = """
import ctypes, resource
from headroom.server.process_limits import forbid_core_dumps
_, hard = resource.getrlimit(resource.RLIMIT_CORE)
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
forbid_core_dumps()
assert resource.getrlimit(resource.RLIMIT_CORE) == (0, hard)
libc, get_dumpable = ctypes.CDLL(None), 3
assert not hasattr(libc, "prctl") or libc.prctl(get_dumpable) == 0
"""


def test_core_dumps_are_forbidden_unless_allowed() -> None:
    subprocess.run([sys.executable, "-c", _FORBIDDEN], check=True, timeout=120)
    assert ServeConfig().core_dumps is False
