"""The data directory and the spool of the last release are read: what is stored stays, what is spooled is stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.headroom.upgrade.recorded_version import SPOOLED, STORED, points, unpack
from tests.kit.serving import Served, eventually

pytestmark = [pytest.mark.release, pytest.mark.clickhouse]


def test_data_of_the_last_release_is_read(tmp_path: Path) -> None:
    unpack(tmp_path)
    with Served(tmp_path) as served:
        eventually(lambda: len(points(served)), lambda count: count >= len(STORED) + len(SPOOLED))
        assert points(served) == [*STORED, *SPOOLED]
