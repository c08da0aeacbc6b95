"""Images of this checkout: built by buildah on bases of Debian that mmdebstrap makes, where there is no registry."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMAGE, GATEWAY = "localhost/headroom", "localhost/headroom-gateway"

# Packages of the base that builds and of the base that runs.
_BASES = {
    "localhost/headroom-base": "python3,python3-venv,python3-dev,gcc,libc6-dev,ca-certificates",
    "localhost/headroom-slim": "python3,ca-certificates,usr-is-merged",
}
_WITHOUT = [f"--dpkgopt=path-exclude=/usr/share/{name}" for name in ("man/*/*", "doc/*", "locale/*")]
# Perl comes for usrmerge alone, of which usr-is-merged takes the place.
_SLIM = 'chroot "$1" apt-get purge -y -q usrmerge perl libperl5.36 perl-modules-5.36'


def buildah(*argv: str | Path) -> str:
    command = ["buildah", *argv]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200, cwd=ROOT)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout.strip()


def build(image: str, *options: str) -> None:
    """Builds the image with the name; steps whose files have not changed since the last time are not run again."""
    present = buildah("images", "--format", "{{.Name}}").split()
    for base, packages in _BASES.items():
        if base not in present:
            _make_base(base, packages)
    compiler, slim = _BASES
    bases = [f"--build-arg=BUILD_BASE={compiler}", f"--build-arg=RUN_BASE={slim}"]
    file = ["-f", "deploy/Containerfile", "-t", image]
    buildah("build", "--layers", "--isolation", "chroot", "--format", "docker", *bases, *options, *file, ".")


def _make_base(name: str, packages: str) -> None:
    """An image of Debian with this machine's certificate authorities."""
    authorities = "/etc/ssl/certs/ca-certificates.crt"
    with tempfile.TemporaryDirectory() as directory:
        archive = Path(directory) / "base.tar"
        debian = ["mmdebstrap", "--quiet", "--variant=minbase", *_WITHOUT, f"--include={packages}"]
        debian += [f"--customize-hook={_SLIM}"] if "usr-is-merged" in packages else []
        subprocess.run([*debian, "bookworm", archive], check=True, timeout=600)
        container = buildah("from", "scratch")
        buildah("add", "-q", container, archive, "/")
        buildah("copy", "-q", container, authorities, authorities)
        buildah("commit", "-q", "--rm", container, name)
