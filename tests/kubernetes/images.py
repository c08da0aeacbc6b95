"""The images that the rig runs, as archives that containerd imports: Headroom's two, and the one of idle pods.

python -m tests.kubernetes.images
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tests.deploy.images import GATEWAY, IMAGE, ROOT, build, buildah

ARCHIVES = ROOT / ".cache" / "kubernetes" / "images"
TAG = "rig"
_PAUSE = "localhost/pause:1"


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


def build_pause() -> None:
    """An image that sleeps, as each pod has one."""
    busybox = shutil.which("busybox")
    assert busybox, "busybox is not installed"
    container = buildah("from", "scratch")
    buildah("copy", "-q", container, busybox, "/bin/sleep")
    entrypoint = ["--entrypoint", '["/bin/sleep","2147483647"]', "--cmd", "", "--user", "65535:65535"]
    buildah("config", *entrypoint, container)
    buildah("commit", "-q", "--rm", container, _PAUSE)


def main() -> int:
    """Prints the size of each image that it built."""
    ARCHIVES.mkdir(parents=True, exist_ok=True)
    images = {f"{GATEWAY}:{TAG}": ["--target", "gateway"], f"{IMAGE}:{TAG}": []}
    for image, options in images.items():
        build(image, *options)
        size = buildah("images", "--format", "{{.Size}}", image)
        print(f"image {image}: {size} unpacked, {export(image).stat().st_size / 1e6:.0f} MB as an archive")
    if "localhost/pause" not in buildah("images", "--format", "{{.Name}}").split():
        build_pause()
    export(_PAUSE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
