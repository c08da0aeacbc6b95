"""The limit of open files, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

_RAISED = """
import resource
from headroom.server.process_limits import allow_open_files
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
allow_open_files()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
"""


def test_soft_limit_is_raised_to_the_hard_limit() -> None:
    subprocess.run([sys.executable, "-c", _RAISED], check=True, timeout=120)
