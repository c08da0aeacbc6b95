"""A bench with a storage worker of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.telemetry.ingest.bench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)
