"""headroom/server/processes/storage_process.py: its first message to the parent."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import cast

import pytest

from exporters.clickhouse.store import PermanentWriteError, Store
from exporters.spool.reader import SpoolReader
from headroom.server.processes.storage_process import _Follower
from tests.kit.worker import worker_settings


class Failing:
    """A store."""

    def __init__(self, fault: Exception) -> None:
        self._fault = fault

    def migrate(self) -> None:
        raise self._fault


@pytest.mark.parametrize(
    ("fault", "reported"),
    [
        (PermanentWriteError("refused\nfor good"), "refused for good"),
        (KeyError("what nobody thought of"), "'what nobody thought of'"),
        (AssertionError(), "AssertionError()"),
    ],
)
def test_whatever_goes_wrong_at_the_first_look_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception, reported: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    reader, parent = SpoolReader(tmp_path / "spool"), io.StringIO()
    follower = _Follower(reader, cast(Store, Failing(fault)), worker_settings(tmp_path), parent)
    follower.begin()
    assert follower._stopping.wait(10)  # standard input is at its end
    reader.close()
    assert json.loads(parent.getvalue())["fault"] == reported
