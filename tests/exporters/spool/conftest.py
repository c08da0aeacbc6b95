"""A writer and the reader of one spool, closed after the test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from exporters.spool.reader import SpoolReader
from exporters.spool.writer import SpoolWriter
from tests.exporters.spool.kit import writer


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[SpoolWriter]:
    with closing(writer(tmp_path)) as opened:
        yield opened


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[SpoolReader]:
    with closing(SpoolReader(tmp_path)) as opened:
        yield opened
