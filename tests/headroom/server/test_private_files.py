"""What `headroom serve` writes is readable by its own user only, whatever the umask."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import psutil
import pytest

from tests.headroom.server.processes.pushes import push
from tests.kit.serving import Served, eventually

pytestmark = pytest.mark.clickhouse


def open_to_others(directory: Path) -> list[str]:
    """Files and directories with a permission for group or others."""
    found = []
    for path in [directory, *directory.rglob("*")]:
        try:
            status = path.lstat()
        except FileNotFoundError:  # of a part that was merged just now
            continue
        if not stat.S_ISLNK(status.st_mode) and status.st_mode & 0o077:
            found.append(f"{path} {stat.filemode(status.st_mode)}")
    return found


def test_files_are_private_and_children_get_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADROOM_WEB__TOKEN", "a-secret-of-32-characters-or-more")
    before = os.umask(0)
    try:
        served = Served(tmp_path)
        with served:
            asyncio.run(push(served.address, 7))
            eventually(served.metrics, lambda found: found["headroom_records:written"] > 0)
            assert open_to_others(tmp_path / "data") == []
            children = psutil.Process(served.process.pid).children(recursive=True)
            assert len(children) >= 2
            for child in children:
                assert "HEADROOM_WEB__TOKEN" not in child.environ(), child.cmdline()
            assert served.stop() == 0
    finally:
        os.umask(before)
