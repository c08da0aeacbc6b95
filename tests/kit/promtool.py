"""Prometheus and its promtool: from PATH, else unpacked from Debian's package into the checkout."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

_UNPACKED = Path(".cache") / "prometheus"


def promtool(root: Path) -> str:
    """Its path. `root`: of the checkout."""
    return _program("promtool", root)


def prometheus_program(root: Path) -> str:
    """The path of the server. `root`: of the checkout."""
    return _program("prometheus", root)


def run(*argv: str, cwd: Path | None = None) -> tuple[int, str]:
    """Exit status and output."""
    ended = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
    return ended.returncode, ended.stdout + ended.stderr


def _program(name: str, root: Path) -> str:
    unpacked = root / _UNPACKED / "usr" / "bin" / name
    if found := shutil.which(name):
        return found
    if not unpacked.exists():
        _unpack(root / _UNPACKED)
    return str(unpacked)


def _unpack(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    if run("apt-get", "download", "prometheus", cwd=directory)[0] != 0:
        run("apt-get", "update", "-qq")
        status, said = run("apt-get", "download", "prometheus", cwd=directory)
        assert status == 0, f"promtool is not on PATH and cannot be fetched: {said}"
    (package,) = directory.glob("prometheus_*.deb")
    status, said = run("dpkg-deb", "-x", str(package), str(directory))
    assert status == 0, said
    package.unlink()
