"""promtool: from PATH, else unpacked from Debian's package into the checkout."""

import shutil
import subprocess
from pathlib import Path


def promtool(root: Path) -> str:
    """Its path. `root`: of the checkout."""
    unpacked = root / ".cache" / "prometheus"
    program = unpacked / "usr" / "bin" / "promtool"
    if installed := shutil.which("promtool"):
        return installed
    if not program.exists():
        unpacked.mkdir(parents=True, exist_ok=True)
        if run("apt-get", "download", "prometheus", cwd=unpacked)[0] != 0:
            run("apt-get", "update", "-qq")
            status, said = run("apt-get", "download", "prometheus", cwd=unpacked)
            assert status == 0, f"prometheus is not installed and cannot be fetched: {said}"
        (archive,) = unpacked.glob("prometheus_*.deb")
        status, said = run("dpkg-deb", "-x", str(archive), str(unpacked))
        assert status == 0, said
        archive.unlink()
    return str(program)


def run(*argv: str, cwd: Path | None = None) -> tuple[int, str]:
    """Exit status and output."""
    ended = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
    return ended.returncode, ended.stdout + ended.stderr
