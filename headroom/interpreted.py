"""HEADROOM_PURE=1 runs the Python source of every module, even where a wheel contains it compiled."""

import os
import sys
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from pathlib import Path

VARIABLE = "HEADROOM_PURE"
_PACKAGES = ("telemetry", "exporters", "quota_metrics")  # that have compiled modules


def prefer_source_if_wanted() -> None:
    """Makes the import system skip extension modules in the packages. Must be called before they are imported."""
    if os.environ.get(VARIABLE, "") in ("", "0"):
        return
    roots = tuple(str(Path(__file__).parent.parent / package) for package in _PACKAGES)

    def source_only(path: str) -> FileFinder:
        if not path.startswith(roots):
            raise ImportError(path)
        return FileFinder(path, (SourceFileLoader, SOURCE_SUFFIXES))

    sys.path_hooks.insert(0, source_only)
    for path in [path for path in sys.path_importer_cache if path.startswith(roots)]:
        del sys.path_importer_cache[path]
