"""Images of this checkout: built by buildah on bases of Debian that mmdebstrap makes, where there is no registry.

    python -m tests.kubernetes.images

makes archives of those that the rig runs: Headroom's two, and that of idle pods.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMAGE, GATEWAY = "localhost/headroom", "localhost/headroom-gateway"
ARCHIVES = ROOT / ".cache" / "kubernetes" / "images"
TAG = "rig"
_PAUSE = "localhost/pause:1"

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
        if base in present:
            continue
        authorities = "/etc/ssl/certs/ca-certificates.crt"  # this machine's
        with tempfile.TemporaryDirectory() as directory:
            archive = Path(directory) / "base.tar"
            debian = ["mmdebstrap", "--quiet", "--variant=minbase", *_WITHOUT, f"--include={packages}"]
            debian += [f"--customize-hook={_SLIM}"] if "usr-is-merged" in packages else []
            subprocess.run([*debian, "bookworm", archive], check=True, timeout=600)
            container = buildah("from", "scratch")
            buildah("add", "-q", container, archive, "/")
            buildah("copy", "-q", container, authorities, authorities)
            buildah("commit", "-q", "--rm", container, base)
    compiler, slim = _BASES
    bases = [f"--build-arg=BUILD_BASE={compiler}", f"--build-arg=RUN_BASE={slim}"]
    file = ["-f", "deploy/Containerfile", "-t", image]
    buildah("build", "--layers", "--isolation", "chroot", "--format", "docker", *bases, *options, *file, ".")


def export(image: str) -> Path:
    """The image's archive, anew unless it holds the image as it is."""
    archive = ARCHIVES / f"{image.rpartition('/')[2].replace(':', '-')}.tar"
    identity = buildah("inspect", "--type", "image", "--format", "{{.FromImageID}}", image)
    identified = archive.with_suffix(".id")
    if not archive.exists() or not identified.exists() or identified.read_text() != identity:
        archive.unlink(missing_ok=True)
        buildah("push", "-q", image, f"oci-archive:{archive}:{image}")
        identified.write_text(identity)
    return archive


def main() -> int:
    """Prints the size of each image that it built."""
    ARCHIVES.mkdir(parents=True, exist_ok=True)
    images = {f"{GATEWAY}:{TAG}": ["--target", "gateway"], f"{IMAGE}:{TAG}": []}
    for image, options in images.items():
        build(image, *options)
        size = buildah("images", "--format", "{{.Size}}", image).splitlines()[0]  # one for each of its names
        print(f"image {image}: {size} unpacked, {export(image).stat().st_size / 1e6:.0f} MB as an archive")
    if "localhost/pause" not in buildah("images", "--format", "{{.Name}}").split():
        busybox = shutil.which("busybox")  # an image that sleeps, as each pod has one
        assert busybox, "busybox is not installed"
        container = buildah("from", "scratch")
        buildah("copy", "-q", container, busybox, "/bin/sleep")
        entrypoint = ["--entrypoint", '["/bin/sleep","2147483647"]', "--cmd", "", "--user", "65535:65535"]
        buildah("config", *entrypoint, container)
        buildah("commit", "-q", "--rm", container, _PAUSE)
    export(_PAUSE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
