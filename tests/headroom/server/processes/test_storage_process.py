"""headroom/server/processes/storage_process.py: its first message to the parent, and its exit after a fatal fault."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import asdict
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
def test_failed_migration_is_reported_to_the_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception, reported: str
) -> None:
    reader, parent = SpoolReader(tmp_path / "spool"), io.StringIO()
    with Path(os.devnull).open() as empty:
        monkeypatch.setattr(sys, "stdin", empty)
        follower = _Follower(reader, cast(Store, Failing(fault)), worker_settings(tmp_path), parent)
        follower.begin()
        assert follower._stopping.wait(10)
    reader.close()
    assert json.loads(parent.getvalue())["fault"] == reported


FATAL = """
from exporters.clickhouse.store import Store
from headroom.server.processes import storage_process
from telemetry.ingest.ingester import Ingester

def step(self, now_ms):
    raise MemoryError("a part is too large")

Store.migrate = Store.check = lambda self: None
Ingester.step = step
raise SystemExit(storage_process.main())
"""


def test_fatal_fault_exits_the_process(tmp_path: Path) -> None:
    settings = json.dumps(asdict(worker_settings(tmp_path)))
    with subprocess.Popen(
        [sys.executable, "-c", FATAL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdin is not None and worker.stderr is not None
        worker.stdin.write(f"{settings}\n")
        worker.stdin.flush()  # and stays open: the parent is alive
        assert worker.wait(60) == 1
        assert "MemoryError: a part is too large" in worker.stderr.read()
