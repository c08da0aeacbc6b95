"""`headroom --version`: version, build, Python and ClickHouse engine."""

import platform
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec


def version_line() -> str:
    """`headroom X.Y.Z (compiled|pure Python, Python 3.x, ClickHouse engine ...)`."""
    frames = find_spec("telemetry.wire.frames")  # of the modules on the path of each frame
    is_compiled = frames is not None and (frames.origin or "").endswith(tuple(EXTENSION_SUFFIXES))
    build = "compiled" if is_compiled else "pure Python"
    try:
        engine = f"ClickHouse engine of chdb {metadata.version('chdb')}"
    except metadata.PackageNotFoundError:
        engine = "ClickHouse engine not installed"
    return f"headroom {metadata.version('headroom')} ({build}, Python {platform.python_version()}, {engine})"
