"""Programs of Debian's packages: from PATH, else unpacked from the package into the checkout."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


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
    unpacked = root / ".cache" / "prometheus"
    program = unpacked / "usr" / "bin" / name
    if found := shutil.which(name):
        return found
    if not program.exists():
        _unpack("prometheus", unpacked)
    return str(program)


def _unpack(package: str, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    if run("apt-get", "download", package, cwd=directory)[0] != 0:
        run("apt-get", "update", "-qq")
        status, said = run("apt-get", "download", package, cwd=directory)
        assert status == 0, f"{package} is not installed and cannot be fetched: {said}"
    (archive,) = directory.glob(f"{package}_*.deb")
    status, said = run("dpkg-deb", "-x", str(archive), str(directory))
    assert status == 0, said
    archive.unlink()
