"""Programs and libraries of Debian's packages: installed, else unpacked from the package into the checkout."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

_FAKETIME = Path("usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")


def promtool(root: Path) -> str:
    """Its path. `root`: of the checkout."""
    return _program("promtool", root)


def prometheus_program(root: Path) -> str:
    """The path of the server. `root`: of the checkout."""
    return _program("prometheus", root)


def faketime_library(root: Path) -> Path:
    """libfaketime, which is preloaded (ld.so(8)). `root`: of the checkout."""
    installed = Path("/") / _FAKETIME
    return installed if installed.exists() else _unpacked("libfaketime", _FAKETIME, root)


def run(*argv: str, cwd: Path | None = None) -> tuple[int, str]:
    """Exit status and output."""
    ended = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
    return ended.returncode, ended.stdout + ended.stderr


def _program(name: str, root: Path) -> str:
    return shutil.which(name) or str(_unpacked("prometheus", Path("usr/bin") / name, root))


def _unpacked(package: str, path: Path, root: Path) -> Path:
    """A file of a package, by its path below `/`."""
    directory = root / ".cache" / package
    if not (directory / path).exists():
        directory.mkdir(parents=True, exist_ok=True)
        if run("apt-get", "download", package, cwd=directory)[0] != 0:
            run("apt-get", "update", "-qq")
            status, said = run("apt-get", "download", package, cwd=directory)
            assert status == 0, f"{package} is not installed and cannot be fetched: {said}"
        (archive,) = directory.glob(f"{package}_*.deb")
        status, said = run("dpkg-deb", "-x", str(archive), str(directory))
        assert status == 0, said
        archive.unlink()
    return directory / path
